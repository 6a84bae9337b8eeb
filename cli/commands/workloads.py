"""Define the commands for any workload: show, cancel and extend."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from cli import output
from cli.formatting import (
    format_cores,
    format_duration,
    format_gibibytes,
    format_local_time,
    relative_time,
)
from cli.lookup import find_workload
from cli.request_options import DURATION_TYPE, SCHEMA
from cli.session import CliSession, cli, command
from cli.workload_actions import cancel_workload, gpu_request_text

# Requirements that `show` prints in another form, and fields that are not requirements.
DESCRIBED = frozenset(
    ("units", "hosts", "models", "profile", "min_memory_mib", "min_compute_capability", "nvlink")
    + ("labels_required", "cpu_milli", "memory_mib", "labels_preferred", "spread", "project", "pool", "name")
)
OTHER_REQUIREMENTS = [
    name
    for name, declared in SCHEMA.items()
    if "reservation" in declared["x-kinds"] and name not in DESCRIBED
]


@command(cli, "show")
@click.argument("id_", metavar="ID")
def show(session: CliSession, id_: str) -> None:
    """Show one notebook or job: state, host, GPUs, times."""
    answer = session.client.get(f"workloads/{find_workload(session, id_)['id']}/")
    if session.json:
        return output.print_json(answer)
    attempt = _runs_of_last_attempt(answer["runs"]) if answer["state"] != "queued" else []
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
    """Return the runs of the last attempt: one per host."""
    return [run for run in runs if run["attempt"] == runs[0]["attempt"]]


def _held_gpus_text(run: dict[str, Any]) -> str:
    """Return e.g. ``GPU 0, 1 of h3``, or for slices ``GPU 3 (1g.10gb) of h3``."""
    units = run.get("units")
    if units is None:  # an older portal does not send units
        return ", ".join(run["gpus"])
    names = [f"{unit['gpu']}{' (' + unit['profile'] + ')' if unit['profile'] else ''}" for unit in units]
    return f"GPU {', '.join(names)} of {run['host']}" if names else ""


def _print_attempts(runs: list[dict[str, Any]]) -> None:
    """Print a table of all attempts.

    There is one row for each run (each host of an attempt), with the host, the times, the outcome and the
    time of the checkpoint. A note says whether the attempt starts from the beginning.
    """
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
                "starts from the beginning: another home folder" if run["begins_anew"] else "",
            )
            for run in runs
        ),
        "",
    )


@command(cli, "cancel")
@click.argument("id_", metavar="ID")
@click.option("--why", "reason", default="", help="Stored in the audit log.")
def cancel(session: CliSession, id_: str, reason: str) -> None:
    """Stop a notebook or job, or remove it from the queue."""
    cancel_workload(session, id_, reason)


@command(cli, "extend")
@click.argument("id_", metavar="ID")
@click.option("--by", "--seconds", "seconds", type=DURATION_TYPE, required=True, help="Such as 2h.")
def extend(session: CliSession, id_: str, seconds: int) -> None:
    """Extend the maximum runtime of a notebook or job."""
    answer = session.client.post(
        f"workloads/{find_workload(session, id_)['id']}/extend/", {"seconds": seconds}
    )
    if session.json:
        return output.print_json(answer)
    return output.print_line(
        f"{answer['name']} may now run {format_duration(answer['max_runtime_seconds'])}."
    )


@command(cli, "keep")
@click.argument("id_", metavar="ID")
@click.option("--for", "seconds", type=DURATION_TYPE, required=True, help="Such as 2h.")
def keep(session: CliSession, id_: str, seconds: int) -> None:
    """Keep an idle notebook running, or postpone the planned stop of a job that does not use its GPUs."""
    answer = session.client.post(f"workloads/{find_workload(session, id_)['id']}/keep/", {"seconds": seconds})
    if session.json:
        return output.print_json(answer)
    return output.print_line(f"{answer['name']} is kept until {format_local_time(answer['keep_until'])}.")


def _requirements_text(row: Any) -> str:
    """Return the requirements for CPU, memory, GPU memory, compute capability, NVLink and labels.

    The fields in OTHER_REQUIREMENTS are included. Fields that an older portal does not send are left out.
    """
    cpu, memory, capability = map(row.get, ("cpu_milli", "memory_mib", "min_compute_capability"))
    size = " and ".join(
        filter(None, [format_cores(cpu) if cpu else "", format_gibibytes(memory) if memory else ""])
    )
    parts = [
        f"{size} on each host" if size and row["hosts"] > 1 else size,
        f"GPUs of at least {format_gibibytes(row['min_memory_mib'])}" if row.get("min_memory_mib") else "",
        f"compute capability {capability / 10:.1f} or higher" if capability else "",
        "one NVLink group" if row.get("nvlink") else "",
        *(f"{name}={value}" for name, value in row.get("labels_required", {}).items()),
        *(f"{name.replace('_', ' ')} {row[name]}" for name in OTHER_REQUIREMENTS if row.get(name)),
    ]
    return ", ".join(filter(None, parts))
