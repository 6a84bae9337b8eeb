"""Define the commands that remove hosts, pools, teams and templates, and move hosts between pools."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.commands.fleet import pool
from cli.formatting import format_local_time
from cli.host_group import PREVIEW_OPTION, REASON_OPTION, host, host_path
from cli.session import CliSession, cli, command


@cli.group()
def team() -> None:
    """Limit the homes of teams, and remove teams. For operators."""


@cli.group()
def template() -> None:
    """Remove templates of notebooks and jobs. For operators."""


@command(host, "remove")
@click.argument("name")
@REASON_OPTION
@PREVIEW_OPTION
def remove_host(session: CliSession, name: str, why: str, preview: bool) -> None:
    """Remove a host on which nothing runs. The records of its runs and its charges are kept."""
    _remove(session, f"hosts/{_quoted(name)}", why, preview)


@command(host, "move")
@click.argument("name")
@click.option("--pool", "pool_slug", required=True, help="The new pool of the host.")
@REASON_OPTION
@PREVIEW_OPTION
def move_host(session: CliSession, name: str, pool_slug: str, why: str, preview: bool) -> None:
    """Move a host to another pool. Its use and charges until now stay with the earlier pool."""
    body = {"pool": pool_slug, "why": why}
    if preview:
        return _print_effect(session, session.client.post(host_path(name, "move/preview"), body))
    return _print_done(session, session.client.post(host_path(name, "move"), body))


@command(pool, "remove")
@click.argument("slug")
@REASON_OPTION
@PREVIEW_OPTION
def remove_pool(session: CliSession, slug: str, why: str, preview: bool) -> None:
    """Remove a pool without hosts, work and reservations; its quotas end."""
    _remove(session, f"pools/{_quoted(slug)}", why, preview)


@command(team, "remove")
@click.argument("slug")
@REASON_OPTION
@PREVIEW_OPTION
def remove_team(session: CliSession, slug: str, why: str, preview: bool) -> None:
    """Remove a team without pools, work and reservations; its memberships and its quotas end."""
    _remove(session, f"teams/{_quoted(slug)}", why, preview)


@command(template, "remove")
@click.argument("slug")
@REASON_OPTION
@PREVIEW_OPTION
def remove_template(session: CliSession, slug: str, why: str, preview: bool) -> None:
    """Delete a template; workloads that were started from it are kept."""
    _remove(session, f"templates/{_quoted(slug)}", why, preview)


def _quoted(slug: str) -> str:
    return quote(slug, safe="", errors="replace")


def _remove(session: CliSession, path: str, why: str, preview: bool) -> None:
    if preview:
        return _print_effect(session, session.client.get(f"{path}/removal/"))
    return _print_done(session, session.client.post(f"{path}/remove/", {"why": why}))


def _print_done(session: CliSession, found: dict[str, Any]) -> None:
    return output.print_json(found) if session.json else output.print_line(found["said"])


def _print_effect(session: CliSession, found: dict[str, Any]) -> None:
    """Print the effects of a removal or a move, and the reason if it would be refused."""
    if session.json:
        return output.print_json(found)
    output.print_line(f"{found['name']}: {found['text']}")
    if found["refused"]:
        output.print_line(f"Refused now: {found['refused']}")
    if found["gpus"]:
        output.print_line(f"GPUs that leave the pool: {found['gpus']}.")
    for title, rows in (
        ("Active reservations on it, which get other GPUs", _reservation_names(found["reservations"])),
        ("Reservations that could not be kept", _reservation_names(found["unkept"])),
        ("Members that leave it", found["members"]),
        ("Projects that close", found["projects"]),
        ("Requests that are withdrawn", [f"{row['kind']} by {row['author']}" for row in found["requests"]]),
    ):
        if rows:
            output.print_line(f"{title}: {', '.join(rows)}.")
    if found["quotas"]:
        output.print_table(
            ("quota of", "pool", "model", "guaranteed"),
            ((q["team"], q["pool"], q["model"], f"{q['guaranteed_gpus']:g}") for q in found["quotas"]),
            "",
        )
    return output.print_line("Nothing is changed. To do it, run the command without --preview.")


def _reservation_names(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['name']} ({row['team']}, from {format_local_time(row['start'])})" for row in rows]
