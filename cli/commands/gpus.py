"""Define the commands about the GPUs of a host: diagnostics, MIG geometry, removal, return, repair policy."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.formatting import format_local_time, relative_time
from cli.host_group import (
    PREVIEW_OPTION,
    REASON_OPTION,
    host,
    host_path,
)
from cli.param_types import DurationType
from cli.session import CliSession, cli, command


@command(host, "diagnostics")
@click.argument("name")
@click.option("--gpu", type=int, help="Only this GPU, by its index.")
def diagnostics(session: CliSession, name: str, gpu: int | None) -> None:
    """Show the results of GPU diagnostics, newest first, with each check and its numbers."""
    rows = [row for row in session.client.pages(host_path(name, "diagnostics")) if gpu in (None, row["gpu"])]
    if session.json:
        return output.print_json(rows)
    now = datetime.now().astimezone()
    return output.print_table(
        ("GPU", "when", "why", "by", "result", "check", "says", "numbers"),
        (line for row in rows for line in _diagnostic_rows(row, now)),
        "No diagnostic yet. Start one: gpupool host diagnose NAME",
    )


def _diagnostic_rows(row: dict[str, Any], now: datetime) -> list[tuple[Any, ...]]:
    """Return one table row per check. The first row also has the result of the whole diagnostic."""
    tool = f"{row['tool']}{' (simulated)' if row['simulated'] and row['tool'] != 'simulated' else ''}"
    head = (
        row["gpu"],
        relative_time(row["ended_at"] or row["created_at"], now),
        row["why"].replace("_", " "),
        tool,
        row["state"],
    )
    result_texts = {True: "passed", False: "failed", None: "measured"}
    checks = [
        (
            check_row["name"],
            " ".join(filter(None, [result_texts[check_row["passed"]], check_row["detail"]])),
            _format_numbers(check_row["numbers"]),
        )
        for check_row in row["checks"]
    ]
    if row["detail"] or not checks:
        checks.insert(0, ("", row["detail"], ""))
    blank = ("",) * len(head)
    return [(*(head if index == 0 else blank), *check) for index, check in enumerate(checks)]


def _format_numbers(numbers: dict[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value:,.6g}"
        if isinstance(value, float)
        else f"{name.replace('_', ' ')} {value}"
        for name, value in numbers.items()
    )


@command(host, "diagnose")
@click.argument("name")
@click.option("--gpu", type=int, help="Index of the GPU; default: every GPU that no workload holds.")
@REASON_OPTION
def diagnose(session: CliSession, name: str, gpu: int | None, why: str) -> None:
    """Test memory, bandwidth and arithmetic of a GPU.

    A GPU that passes returns to service; a GPU that fails goes out of service.
    """
    body: dict[str, Any] = {"why": why} | ({} if gpu is None else {"gpu": gpu})
    rows = session.client.post(host_path(name, "diagnose"), body)
    if session.json:
        return output.print_json(rows)
    listed = ", ".join(str(row["gpu"]) for row in rows)
    return output.print_line(f"Diagnostic started: GPU {listed}. See: gpupool host health {name}")


@command(host, "geometry")
@click.argument("name")
def geometry(session: CliSession, name: str) -> None:
    """Show the MIG geometry of the host's GPUs, the supported profiles, and the last change."""
    rows = session.client.get(host_path(name, "geometry"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("GPU", "geometry", "can have", "last change", "says"),
        (
            (
                row["gpu"],
                row["geometry"] or "split, no instances",
                ", ".join(f"{profile['most']}x{profile['name']}" for profile in row["profiles"])
                or "no other",
                f"{last['after']}: {last['state']}" if (last := row["last_change"]) else "none",
                last["detail"] if last else "",
            )
            for row in rows
        ),
        "No GPU reported.",
    )


@command(host, "change-geometry")
@click.argument("name")
@click.argument("gpu", type=int)
@click.argument("wanted", metavar="GEOMETRY")
@PREVIEW_OPTION
@REASON_OPTION
def change_geometry(session: CliSession, name: str, gpu: int, wanted: str, preview: bool, why: str) -> None:
    """Change the MIG geometry of a GPU: whole, or e.g.

    1x3g.40gb+4x1g.10gb. The work on the GPU ends before the change.
    """
    body = {"gpu": gpu, "geometry": wanted}
    if preview:
        found = session.client.post(host_path(name, "geometry/preview"), body)
        if session.json:
            return output.print_json(found)
        output.print_line(
            f"GPU {gpu} of {name}: {found['before'] or 'whole'} becomes {found['after'] or 'whole'}."
        )
        output.print_table(
            ("workload", "team", "owner", "what happens", "ends at the latest"),
            (
                (
                    w["name"],
                    w["team"],
                    w["owner"],
                    "leaves" if w["leaves"] else "runs to its end",
                    format_local_time(w["by"]),
                )
                for w in found["work"]
            ),
            "No workload runs on it.",
        )
        begins = "at once" if found["free_by"] is None else f"by {format_local_time(found['free_by'])}"
        unkept = (
            f" These can't be served without the GPU: {', '.join(found['unkept'])}."
            if found["unkept"]
            else ""
        )
        return output.print_line(
            f"Reservations bound to the GPU: {found['reservations']}.{unkept} The change begins {begins}."
        )
    row = session.client.post(host_path(name, "geometry"), {**body, "why": why})
    said = f"GPU {gpu} of {name} takes no new work, and becomes {row['after']} when no workload holds it."
    return (
        output.print_json(row)
        if session.json
        else output.print_line(f"{said} See: gpupool host geometry {name}")
    )


@command(host, "withdraw-geometry")
@click.argument("name")
@click.argument("gpu", type=int)
@REASON_OPTION
def withdraw_geometry(session: CliSession, name: str, gpu: int, why: str) -> None:
    """Withdraw a geometry change that the host has not received yet."""
    row = session.client.post(host_path(name, "geometry/withdraw"), {"gpu": gpu, "why": why})
    output.print_json(row) if session.json else output.print_line(
        f"GPU {gpu} of {name} stays {row['before']}."
    )


@command(host, "return-gpu")
@click.argument("name")
@click.argument("gpu", type=int)
@REASON_OPTION
def return_gpu(session: CliSession, name: str, gpu: int, why: str) -> None:
    """Return a GPU to service, even if problems were found."""
    _post_gpu_verb(session, name, "return-gpu", gpu, why)


@command(host, "take-out-gpu")
@click.argument("name")
@click.argument("gpu", type=int)
@REASON_OPTION
def take_out_gpu(session: CliSession, name: str, gpu: int, why: str) -> None:
    """Take a GPU out until it is returned; its work is stopped and starts elsewhere."""
    _post_gpu_verb(session, name, "take-out-gpu", gpu, why)


@command(host, "forget-gpu")
@click.argument("name")
@click.argument("uuid")
@REASON_OPTION
def forget_gpu(session: CliSession, name: str, uuid: str, why: str) -> None:
    """Remove a missing GPU from the list permanently."""
    row = session.client.post(host_path(name, "forget-gpu"), {"gpu": uuid, "why": why})
    output.print_json(row) if session.json else output.print_line(
        f"GPU {row['gpu']} of {name} ({row['uuid']}) is removed from the list."
    )


def _post_gpu_verb(session: CliSession, name: str, verb: str, gpu: int, why: str) -> None:
    row = session.client.post(host_path(name, verb), {"gpu": gpu, "why": why})
    output.print_json(row) if session.json else output.print_line(
        f"GPU {gpu} of {name} is {row['repair_state']}."
    )


@command(cli, "repair-policy")
@click.argument("pool")
@click.option("--strays", "stray_action", type=click.Choice(["report", "warn", "end"]))
@click.option(
    "--tool",
    "diagnostic_tool",
    help="auto, own, dcgm, or the name of an operator's diagnostic on its hosts.",
)
@click.option(
    "--deadline",
    "diagnostic_seconds",
    type=DurationType(),
    help="Time limit of a diagnostic of one GPU, such as 10m.",
)
@click.option("--idle-every", "diagnose_every_hours", type=int, help="Hours; 0: never.")
@click.option("--after-quarantine/--not-after-quarantine", "diagnose_after_quarantine", default=None)
def repair_policy(session: CliSession, pool: str, **given: Any) -> None:
    """Show or change a pool's automatic actions on stray processes and suspect GPUs."""
    path = f"pools/{quote(pool, safe='', errors='replace')}/repair-policy/"
    change = {name: value for name, value in given.items() if value is not None}
    row = session.client.put(path, change) if change else session.client.get(path)
    if session.json:
        return output.print_json(row)
    return output.print_facts([(name.replace("_", " "), str(value)) for name, value in row.items()])
