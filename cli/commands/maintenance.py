"""Define the commands that announce and end maintenance of a host and of the database."""

from __future__ import annotations

from typing import Any

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
from cli.session import CliSession, cli, command

DATABASE_PATH = "database-maintenance/"


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


@cli.group()
def database() -> None:
    """Announce and end planned maintenance of the database. For operators."""


@command(database, "status")
def database_status(session: CliSession) -> None:
    """Show the current maintenance, and whether the database may be stopped."""
    return _print(session, session.client.get(DATABASE_PATH))


@command(database, "begin-maintenance")
@click.option("--minutes", type=int, default=30, show_default=True, help="Announced duration, 1 to 240.")
@click.option("--why", required=True, help="Shown to everybody.")
def begin_maintenance(session: CliSession, minutes: int, why: str) -> None:
    """Stop the placement of work and keep running work, for some minutes. It ends by itself."""
    return _print(session, session.client.post(DATABASE_PATH, {"minutes": minutes, "why": why}))


@command(database, "end-maintenance")
@click.option("--why", default="", help="Stored in the audit log.")
def end_maintenance(session: CliSession, why: str) -> None:
    """End the maintenance before its announced end. Work is placed again."""
    return _print(session, session.client.post(f"{DATABASE_PATH}end/", {"why": why}))


def _print(session: CliSession, found: dict[str, Any]) -> None:
    if session.json:
        return output.print_json(found)
    if not found["ends_at"]:
        return output.print_line("No maintenance of the database is announced.")
    ends = format_local_time(found["ends_at"])
    output.print_line(f"Maintenance until {ends}, by {found['announced_by']}: {found['reason']}")
    ready = f"{found['edges_ready']} of {found['edges']} edges know the announced end"
    advice = "the database may be stopped" if found["may_stop_database"] else "do not stop the database yet"
    return output.print_line(f"{ready}: {advice}.")
