"""Notebooks, jobs and arrays: launch, read, stop."""

from __future__ import annotations

import shlex
import sys
import time
import webbrowser
from datetime import datetime
from typing import Any

import click

from cli import output
from cli.errors import EXIT_NOT_FOUND, CliError
from cli.formatting import (
    expected_start_text,
    format_cores,
    format_duration,
    format_gibibytes,
    format_local_time,
    relative_time,
)
from cli.lookup import find_by_id_or_name, find_workload
from cli.request_options import (
    DURATION_TYPE,
    TIMESTAMP_TYPE,
    gpu_options,
    parse_pairs,
    placement_options,
    request_body,
    requirement_options,
    run_options,
)
from cli.session import CliSession, cli, command

PRIORITY_TYPE = click.Choice(["low", "normal", "high", "critical"])
POLL_SECONDS = 1.0


@cli.group()
def notebook() -> None:
    """Launch, open and stop notebooks."""


@cli.group()
def job() -> None:
    """Run jobs and read what they write."""


@command(notebook, "launch")
@gpu_options
@run_options
@requirement_options
@click.option("--template", help="What is not given comes from it.")
@click.option("--open", "open_it", is_flag=True, help="Wait until it is ready and open it in the browser.")
@click.option("--wait", is_flag=True, help="Wait until it is ready.")
def launch_notebook(
    session: CliSession, open_it: bool, wait: bool, template: str | None, **given: Any
) -> None:
    """Launch a JupyterLab."""
    body = request_body(session, given) | ({"template": template} if template else {})
    made = session.client.post("notebooks/", body)
    if wait or open_it:
        made = _wait_until_ready(session, made["id"])
    if open_it:
        return open_in_browser(session, made, print_only=False)
    return print_created(session, made)


@command(notebook, "open")
@click.argument("id_", metavar="ID")
@click.option("--print", "print_only", is_flag=True, help="Print the address and open nothing.")
def open_notebook(session: CliSession, id_: str, print_only: bool) -> None:
    """Open a running notebook in the browser. The address works once, within a minute."""
    open_in_browser(session, find_workload(session, id_), print_only)


@command(notebook, "stop")
@click.argument("id_", metavar="ID")
def stop_notebook(session: CliSession, id_: str) -> None:
    """Stop a notebook; its files stay in your home."""
    cancel_workload(session, id_, "")


@command(notebook, "list")
@click.option("--all", "everything", is_flag=True, help="Those of your teams, and those that ended.")
def list_notebooks(session: CliSession, everything: bool) -> None:
    """Your notebooks."""
    list_workloads(session, "notebooks/", everything)


@command(job, "run", context_settings={"ignore_unknown_options": False})
@gpu_options
@run_options
@placement_options
@click.option("--priority", type=PRIORITY_TYPE)
@click.option(
    "--preemptible/--no-preemptible", default=None, help="Whether it may borrow and be asked to go."
)
@click.option("--most-retries", type=int, help="Tries again so often after a failure.")
@click.option(
    "--if-member-ends",
    type=click.Choice(["restart", "end"]),
    help="On several hosts, once it ends on one of them.",
)
@click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="An environment variable.")
@click.option(
    "--wanted-by",
    type=TIMESTAMP_TYPE,
    help="When it should be done: a wish; you are told when it looks later.",
)
@click.option(
    "--after",
    multiple=True,
    metavar="HOW:ID",
    help="Only once a job or a whole array has ended: ok, any, not_ok.",
)
@click.option("--array", help="One task for each index: 0-9, 1,3,5-9:2; %4 after it: at most 4 at once.")
@click.option("--follow", "-f", is_flag=True, help="Wait for it and print what it writes.")
@click.option("--dry-run", is_flag=True, help="Only say whether it would start, and when.")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...")
def run_job(
    session: CliSession,
    words: tuple[str, ...],
    follow: bool,
    dry_run: bool,
    environment: tuple[str, ...],
    after: tuple[str, ...],
    array: str | None,
    **given: Any,
) -> None:
    """Run a command as a job: gpupool job run --gpus 2 -- python train.py"""
    if array and follow:
        raise click.UsageError("--follow goes with one job; read a task's log with: gpupool job logs ID")
    body = request_body(session, given)
    body["command"] = words[0] if len(words) == 1 else shlex.join(words)
    body.setdefault("name", words[0].split()[0].rsplit("/", 1)[-1][:80] if words[0].split() else "job")
    body.setdefault("units", 1)
    if environment:
        body["environment"] = parse_pairs(environment)
    if after:
        body["after"] = [_parse_dependency(session, text) for text in after]
    if dry_run:
        return _print_start_preview(session, session.client.post("jobs/preview/", body))
    if array:
        made = session.client.post("arrays/", body | {"array": array})
        return output.print_json(made) if session.json else _print_array(made)
    made = session.client.post("jobs/", body)
    if not follow:
        return print_created(session, made)
    if not session.json:
        print_created(session, made)
    return _follow_log(session, made["id"], None)


def _print_start_preview(session: CliSession, answer: Any) -> None:
    if session.json:
        return output.print_json(answer)
    output.print_line(f"{_start_preview_text(answer)} {answer['sentence']}")
    for warning in filter(None, [answer["wish"], *answer.get("warnings", ())]):
        output.print_line(warning)
    return None


def _start_preview_text(answer: Any) -> str:
    if answer["starts_now"]:
        return "It would start now."
    if answer["never_starts"]:
        return f"It {'would be queued and not start' if answer['may_be_granted'] else 'is not taken'}."
    at = (
        f"start {expected_start_text(answer, datetime.now().astimezone())}"
        if answer["expected_start"]
        else "wait"
    )
    return f"It would {at}."


def _parse_dependency(session: CliSession, text: str) -> dict[str, str]:
    condition, colon, id_ = text.partition(":")
    if not colon or condition not in ("ok", "any", "not_ok"):
        raise click.UsageError(f"--after {text!r}; allowed: ok:ID, any:ID or not_ok:ID.")
    try:
        return {"condition": condition, "workload": find_workload(session, id_)["id"]}
    except CliError as no_workload:
        if no_workload.code != EXIT_NOT_FOUND:
            raise
        try:
            return {
                "condition": condition,
                "array": find_by_id_or_name(session.client, id_, "arrays/", "array")["id"],
            }
        except CliError:
            raise no_workload from None


def _print_array(made: Any) -> None:
    output.print_line(f"{made['name']} ({made['id']}): {made['tasks']} tasks in {made['pool']}.")
    if made.get("warning"):
        output.print_line(made["warning"])


@command(job, "arrays")
def list_arrays(session: CliSession) -> None:
    """Arrays of jobs of your teams, with their counts."""
    rows = list(session.client.pages("arrays/"))
    if session.json:
        return output.print_json(rows)
    columns = ("tasks", "waiting", "running", "finished", "cancelled", "failed")
    return output.print_table(
        ("id", "name", *columns, "owner"),
        ((row["id"][:8], row["name"], *(row[name] for name in columns), row["owner"]) for row in rows),
        "No arrays. Make one: gpupool job run --array 0-9 -- COMMAND",
    )


@command(job, "cancel-array")
@click.argument("id_", metavar="ID")
@click.option("--why", "reason", default="", help="Kept in the record.")
def cancel_array(session: CliSession, id_: str, reason: str) -> None:
    """Cancel every task of an array that has not ended."""
    found = find_by_id_or_name(session.client, id_, "arrays/", "array")
    answer = session.client.post(f"arrays/{found['id']}/cancel/", {"why": reason})
    output.print_json(answer) if session.json else output.print_line(
        f"{answer['cancelled']} tasks are cancelled."
    )


@command(job, "logs")
@click.argument("id_", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until it has ended.")
@click.option("--attempt", type=int, help="The last one unless given.")
@click.option(
    "--rank", type=click.IntRange(0), default=0, help="Of a job on several hosts: which of them, from 0."
)
def read_logs(session: CliSession, id_: str, follow: bool, attempt: int | None, rank: int) -> None:
    """What a job wrote."""
    found = find_workload(session, id_)
    if rank >= found["hosts"]:
        allowed = f"0 to {found['hosts'] - 1}" if found["hosts"] > 1 else "0: it runs on one host"
        raise click.UsageError(f"--rank {rank} of {found['name']}; allowed: {allowed}.")
    if follow:
        return _follow_log(session, found["id"], attempt, rank)
    offset, text = 0, []
    while True:
        piece = session.client.get(
            f"workloads/{found['id']}/logs/", offset=offset, attempt=attempt, rank=rank
        )
        if not piece["text"]:
            break
        text.append(piece["text"])
        offset = piece["next_offset"]
    if session.json:
        return output.print_json({"text": "".join(text), "next_offset": offset})
    sys.stdout.write("".join(text))
    return None


@command(job, "open")
@click.argument("id_", metavar="ID")
@click.option("--print", "print_only", is_flag=True, help="Print the address and open nothing.")
def open_job(session: CliSession, id_: str, print_only: bool) -> None:
    """Open what a job serves in the browser. The address works once, within a minute."""
    open_in_browser(session, find_workload(session, id_), print_only)


@command(job, "list")
@click.option("--all", "everything", is_flag=True, help="Those of your teams, and those that ended.")
@click.option("--array", metavar="ID", help="All tasks of this array, those that ended too.")
def list_jobs(session: CliSession, everything: bool, array: str | None) -> None:
    """Your jobs."""
    if array is None:
        return list_workloads(session, "jobs/", everything)
    return list_workloads(
        session,
        "jobs/",
        everything=True,
        array=find_by_id_or_name(session.client, array, "arrays/", "array")["id"],
    )


@command(cli, "show")
@click.argument("id_", metavar="ID")
def show(session: CliSession, id_: str) -> None:
    """One notebook or job: state, host, GPUs, times."""
    answer = session.client.get(f"workloads/{find_workload(session, id_)['id']}/")
    if session.json:
        return output.print_json(answer)
    attempt = (
        _runs_of_last_attempt(answer["runs"]) if answer["state"] != "queued" else []
    )  # what waits holds nothing
    now = datetime.now().astimezone()
    output.print_facts(
        [
            ("id", answer["id"]),
            ("name", answer["name"]),
            ("kind", answer["kind"]),
            ("state", answer["outcome"] if answer["state"] == "ended" else answer["state"]),
            ("why", answer["reason"]),
            ("project", answer["project"]),
            ("pool", answer["pool"]),
            ("GPUs", gpu_request_text(answer)),
            ("needs", _requirements_text(answer)),
            ("host", ", ".join(dict.fromkeys(run["host"] for run in attempt))),
            (
                "held" if answer["state"] == "ended" else "holds",
                "; ".join(filter(None, map(_held_gpus_text, attempt))),
            ),
            ("attempt", answer["attempt"]),
            ("submitted", relative_time(answer["submitted_at"], now)),
            ("started", relative_time(answer["started_at"], now) if answer["started_at"] else ""),
            ("ended", relative_time(answer["ended_at"], now) if answer.get("ended_at") else ""),
            ("limit", format_duration(answer["max_runtime_seconds"])),
            ("command", answer["command"]),
        ]
    )
    return _print_attempts(answer["runs"]) if answer["attempt"] > 1 else None


def _runs_of_last_attempt(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Its run on each host, of a gang several."""
    return [run for run in runs if run["attempt"] == runs[0]["attempt"]]


def _held_gpus_text(run: dict[str, Any]) -> str:
    """``GPU 0, 1 of h3``; of slices ``GPU 3 (1g.10gb) of h3``."""
    units = run.get("units")
    if units is None:  # an older portal
        return ", ".join(run["gpus"])
    names = [f"{unit['gpu']}{' (' + unit['profile'] + ')' if unit['profile'] else ''}" for unit in units]
    return f"GPU {', '.join(names)} of {run['host']}" if names else ""


def _print_attempts(runs: list[dict[str, Any]]) -> None:
    """Where each attempt was, how it ended, what it saved, and which did not find its checkpoint."""
    output.print_table(
        ("attempt", "host", "placed", "ended", "how", "checkpoint", "note"),
        (
            (
                run["attempt"],
                run["host"],
                format_local_time(run["placed_at"]),
                format_local_time(run["ended_at"]) if run["ended_at"] else "",
                run["outcome"].replace("_", " "),
                format_local_time(run["checkpoint_at"]) if run["checkpoint_at"] else "none",
                "begins anew: another home folder" if run["begins_anew"] else "",
            )
            for run in runs
        ),
        "",
    )


@command(cli, "cancel")
@click.argument("id_", metavar="ID")
@click.option("--why", "reason", default="", help="Kept in the record.")
def cancel(session: CliSession, id_: str, reason: str) -> None:
    """Stop a notebook or job, or take it out of the queue."""
    cancel_workload(session, id_, reason)


@command(cli, "extend")
@click.argument("id_", metavar="ID")
@click.option("--by", "--seconds", "seconds", type=DURATION_TYPE, required=True, help="Such as 2h.")
def extend(session: CliSession, id_: str, seconds: int) -> None:
    """Let it run longer."""
    answer = session.client.post(
        f"workloads/{find_workload(session, id_)['id']}/extend/", {"seconds": seconds}
    )
    if session.json:
        return output.print_json(answer)
    return output.print_line(
        f"{answer['name']} may now run {format_duration(answer['max_runtime_seconds'])}."
    )


def print_created(session: CliSession, made: Any) -> None:
    if session.json:
        return output.print_json(made)
    output.print_line(
        f"{made['name']} ({made['id']}) is {made['state']}: {gpu_request_text(made)} in {made['pool']}."
    )
    if made.get("warning"):
        output.print_line(made["warning"])
    return (
        output.print_line(f"See why it waits: gpupool why {made['id'][:8]}")
        if made["state"] == "queued"
        else None
    )


def gpu_request_text(row: Any) -> str:
    count = f"{row['hosts']} hosts, each {row['units']}" if row["hosts"] > 1 else row["units"]
    return f"{count} x {' or '.join(row['models']) or 'any'}{' ' + row['profile'] if row['profile'] else ''}"


def _requirements_text(row: Any) -> str:
    """What it asks for beside its GPUs, of a portal that says so."""
    cpu, memory, capability = map(row.get, ("cpu_milli", "memory_mib", "min_compute_capability"))
    words = " and ".join(
        filter(None, [format_cores(cpu) if cpu else "", format_gibibytes(memory) if memory else ""])
    )
    said = [
        f"{words} on each host" if words and row["hosts"] > 1 else words,
        f"GPUs of at least {format_gibibytes(row['min_memory_mib'])}" if row.get("min_memory_mib") else "",
        f"compute capability {capability / 10:.1f} or higher" if capability else "",
        "one NVLink group" if row.get("nvlink") else "",
        *(f"{name}={value}" for name, value in row.get("labels_required", {}).items()),
    ]
    return ", ".join(filter(None, said))


def list_workloads(session: CliSession, path: str, everything: bool, **only: str) -> None:
    query: dict[str, Any] = {**only} if everything else {"mine": True, "state": "open", **only}
    rows = list(session.client.pages(path, **query))
    if session.json:
        return output.print_json(rows)
    now = datetime.now().astimezone()
    return output.print_table(
        ("id", "name", "state", "GPUs", "pool", "submitted", "started", "owner"),
        (
            (
                row["id"][:8],
                row["name"],
                row["outcome"] if row["state"] == "ended" else row["state"],
                row["units"] * row["hosts"],
                row["pool"],
                relative_time(row["submitted_at"], now),
                relative_time(row["started_at"], now),
                row["owner"],
            )
            for row in rows
        ),
        "None. --all also shows those of your teams and those that ended.",
    )


def cancel_workload(session: CliSession, id_: str, reason: str) -> None:
    answer = session.client.post(f"workloads/{find_workload(session, id_)['id']}/cancel/", {"why": reason})
    if session.json:
        return output.print_json(answer)
    return output.print_line(
        f"{answer['name']} is {'cancelled' if answer['state'] == 'ended' else 'stopping'}."
    )


def _wait_until_ready(session: CliSession, id_: str) -> Any:
    said = ""
    while True:
        answer = session.client.get(f"workloads/{id_}/")
        run_ = answer["runs"][0] if answer["runs"] else {}
        if answer["state"] == "ended":
            raise CliError(
                f"{answer['name']} ended before it was ready: {answer['outcome'].replace('_', ' ')}."
            )
        if run_.get("ready_at") and answer["state"] in ("running", "notice"):
            return answer
        words = f"{answer['state']}: {run_.get('step') or answer['reason']}".rstrip(": ")
        if words != said and not session.json:
            output.print_line(words)
        said = words
        time.sleep(POLL_SECONDS)


def open_in_browser(session: CliSession, workload: Any, print_only: bool) -> None:
    answer = session.client.post(f"workloads/{workload['id']}/open/")
    if session.json:
        return output.print_json(answer)
    if not print_only and webbrowser.open(answer["url"]):
        return output.print_line(f"{workload['name']} opens in the browser.")
    return print(answer["url"])


def _follow_log(session: CliSession, id_: str, attempt: int | None, rank: int = 0) -> None:
    """Print pieces as they come, over attempts, until it has ended; the exit code says how."""
    offset, shown, at_its_end = 0, attempt, False
    while True:
        now = session.client.get(f"workloads/{id_}/")
        current = attempt or max(now["attempt"], 1)
        if shown != current:
            offset, shown = 0, current
        piece = session.client.get(f"workloads/{id_}/logs/", offset=offset, attempt=current, rank=rank)
        sys.stdout.write(piece["text"])
        sys.stdout.flush()
        offset = piece["next_offset"]
        over = not piece["text"] and (now["state"] == "ended" or (attempt and piece["ended"]))
        if over and at_its_end:
            break
        at_its_end = bool(over)  # its last lines may come a moment after the word that it has ended
        if not piece["text"]:
            time.sleep(POLL_SECONDS)
    if now["state"] == "ended" and now["outcome"] != "finished":
        raise CliError(f"{now['name']} ended: {now['outcome'].replace('_', ' ')}. {now['reason']}".strip())
