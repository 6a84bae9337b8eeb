"""Define the commands that announce and cancel maintenance windows of a host."""

from __future__ import annotations

import click

from cli import output
from cli.formatting import format_local_time
from cli.host_group import (
    PREVIEW_OPTION,
    REASON_OPTION,
    host,
    host_path,
    print_affected_reservations,
    print_affected_workloads,
    print_preview,
    require_reason,
)
from cli.param_types import TimestampType
from cli.session import CliSession, command


@command(host, "maintenance")
@click.argument("name")
@click.option("--start", type=TimestampType(), required=True, help="Such as 'tomorrow 08:00'.")
@click.option("--end", type=TimestampType(), required=True)
@click.option(
    "--why",
    default="",
    help="Shown to everybody; owners of affected work are notified. Required without --preview.",
)
@PREVIEW_OPTION
def maintenance(session: CliSession, name: str, start: str, end: str, why: str, preview: bool) -> None:
    """Announce a window in which the host is away: no work is scheduled in it."""
    require_reason(why, preview)
    if preview:
        return print_preview(session, name, {"verb": "maintenance", "start": start, "end": end})
    row = session.client.post(host_path(name, "maintenance"), {"start": start, "end": end, "why": why})
    if session.json:
        return output.print_json(row)
    output.print_line(
        f"{name} is away from {format_local_time(row['start'])} to {format_local_time(row['end'])}: "
        "no work is scheduled in it."
    )
    if "work" in row:  # an older portal does not send "work"
        print_affected_workloads(row["work"])
        print_affected_reservations({**row, "verb": "maintenance"})
        output.print_line(f"Cancel it with: gpupool host cancel-maintenance {name} {row['id']}")
    return None


@command(host, "cancel-maintenance")
@click.argument("name")
@click.argument("window", type=int)
@REASON_OPTION
def cancel_maintenance(session: CliSession, name: str, window: int, why: str) -> None:
    """Cancel an announced window; its number is in: gpupool host health NAME"""
    row = session.client.post(host_path(name, "maintenance/cancel"), {"window": window, "why": why})
    output.print_json(row) if session.json else output.print_line(
        f"The window from {format_local_time(row['start'])} is cancelled."
    )
