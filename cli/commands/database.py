"""Define the commands that announce and end maintenance of the database."""

from __future__ import annotations

from typing import Any

import click

from cli import output
from cli.formatting import format_local_time
from cli.session import CliSession, cli, command

PATH = "database-maintenance/"


@cli.group()
def database() -> None:
    """Announce and end planned maintenance of the database. For operators."""


@command(database, "status")
def database_status(session: CliSession) -> None:
    """Show the maintenance that lasts now, and whether the database may be stopped."""
    return _print(session, session.client.get(PATH))


@command(database, "begin-maintenance")
@click.option("--minutes", type=int, default=30, show_default=True, help="Announced duration, 1 to 240.")
@click.option("--why", required=True, help="Shown to everybody.")
def begin_maintenance(session: CliSession, minutes: int, why: str) -> None:
    """Stop the placement of work and keep running work, for some minutes. It ends by itself."""
    return _print(session, session.client.post(PATH, {"minutes": minutes, "why": why}))


@command(database, "end-maintenance")
@click.option("--why", default="", help="Stored in the audit log.")
def end_maintenance(session: CliSession, why: str) -> None:
    """End the maintenance before its announced end. Work is placed again."""
    return _print(session, session.client.post(f"{PATH}end/", {"why": why}))


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
