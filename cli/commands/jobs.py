"""Define the commands that run jobs and arrays, list them and read their logs."""

from __future__ import annotations

import shlex
import sys
import time
from datetime import datetime
from typing import Any

import click

from cli import output
from cli.errors import EXIT_NOT_FOUND, CliError
from cli.formatting import expected_start_text
from cli.lookup import find_by_id_or_name, find_workload
from cli.request_options import request_body, request_options
from cli.session import CliSession, cli, command
from cli.workload_actions import (
    POLL_SECONDS,
    list_workloads,
    open_in_browser,
    print_created,
)


@cli.group()
def job() -> None:
    """Run jobs and read their output."""


@command(job, "run", context_settings={"ignore_unknown_options": False})
@request_options("job")
@click.option("--array", help="One task per index: 0-9 or 1,3,5-9:2; append %4 to run at most 4 at once.")
@click.option("--follow", "-f", is_flag=True, help="Wait for the job and print its output.")
@click.option("--dry-run", is_flag=True, help="Only show whether the job would start, and when.")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...")
def run_job(
    session: CliSession,
    words: tuple[str, ...],
    follow: bool,
    dry_run: bool,
    after: tuple[str, ...],
    array: str | None,
    **given: Any,
) -> None:
    """Run a command as a job: gpupool job run --gpus 2 -- python train.py"""
    if array and follow:
        raise click.UsageError(
            "--follow works for a single job only; to read a task's log: gpupool job logs ID"
        )
    body = request_body(session, given)
    body["command"] = words[0] if len(words) == 1 else shlex.join(words)
    body.setdefault("name", words[0].split()[0].rsplit("/", 1)[-1][:80] if words[0].split() else "job")
    body.setdefault("units", 1)
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
        return f"It {'would be queued and not start' if answer['may_be_granted'] else 'would be rejected'}."
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
    """List job arrays of your teams, with the number of tasks by state."""
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
@click.option("--why", "reason", default="", help="Stored in the audit log.")
def cancel_array(session: CliSession, id_: str, reason: str) -> None:
    """Cancel every task of an array that has not ended."""
    found = find_by_id_or_name(session.client, id_, "arrays/", "array")
    answer = session.client.post(f"arrays/{found['id']}/cancel/", {"why": reason})
    output.print_json(answer) if session.json else output.print_line(
        f"{answer['cancelled']} tasks are cancelled."
    )


@command(job, "logs")
@click.argument("id_", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Continue until the job has ended.")
@click.option("--attempt", type=int, help="Default: the last one.")
@click.option("--rank", type=click.IntRange(0), default=0, help="Host of a job on several hosts, from 0.")
def read_logs(session: CliSession, id_: str, follow: bool, attempt: int | None, rank: int) -> None:
    """Print the output of a job."""
    found = find_workload(session, id_)
    if rank >= found["hosts"]:
        allowed = f"0 to {found['hosts'] - 1}" if found["hosts"] > 1 else "0: it runs on one host"
        raise click.UsageError(f"--rank {rank} of {found['name']}; allowed: {allowed}.")
    if follow:
        return _follow_log(session, found["id"], attempt, rank)
    offset, text = 0, []
    while True:
        chunk = session.client.get(
            f"workloads/{found['id']}/logs/", offset=offset, attempt=attempt, rank=rank
        )
        if not chunk["text"]:
            break
        text.append(chunk["text"])
        offset = chunk["next_offset"]
    if session.json:
        return output.print_json({"text": "".join(text), "next_offset": offset})
    sys.stdout.write("".join(text))
    return None


@command(job, "open")
@click.argument("id_", metavar="ID")
@click.option("--print", "print_only", is_flag=True, help="Print the address without opening a browser.")
def open_job(session: CliSession, id_: str, print_only: bool) -> None:
    """Open a job's web service in the browser. The address works once, within a minute."""
    open_in_browser(session, find_workload(session, id_), print_only)


@command(job, "list")
@click.option("--all", "everything", is_flag=True, help="Also jobs of your teams, and ended jobs.")
@click.option("--array", metavar="ID", help="All tasks of this array, including ended tasks.")
def list_jobs(session: CliSession, everything: bool, array: str | None) -> None:
    """List your jobs."""
    if array is None:
        return list_workloads(session, "jobs/", everything)
    return list_workloads(
        session,
        "jobs/",
        everything=True,
        array=find_by_id_or_name(session.client, array, "arrays/", "array")["id"],
    )


def _follow_log(session: CliSession, id_: str, attempt: int | None, rank: int = 0) -> None:
    """Print the output of ``attempt`` until the attempt or the job ends.

    If ``attempt`` is None, print the output of the present attempt and of all later attempts until the job
    ends. Raises CliError if the job has ended with an outcome other than "finished".
    """
    offset, shown_attempt, at_its_end = 0, attempt, False
    while True:
        now = session.client.get(f"workloads/{id_}/")
        current = attempt or max(now["attempt"], 1)
        if shown_attempt != current:
            offset, shown_attempt = 0, current
        chunk = session.client.get(f"workloads/{id_}/logs/", offset=offset, attempt=current, rank=rank)
        sys.stdout.write(chunk["text"])
        sys.stdout.flush()
        offset = chunk["next_offset"]
        is_over = not chunk["text"] and (now["state"] == "ended" or (attempt and chunk["ended"]))
        if is_over and at_its_end:
            break
        at_its_end = bool(is_over)  # the last lines may arrive shortly after the end is reported
        if not chunk["text"]:
            time.sleep(POLL_SECONDS)
    if now["state"] == "ended" and now["outcome"] != "finished":
        raise CliError(f"{now['name']} ended: {now['outcome'].replace('_', ' ')}. {now['reason']}".strip())
