"""Define the ``gpupool host`` group and the parts that its command modules share."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.formatting import format_local_time
from cli.session import CliSession, cli

REASON_OPTION = click.option("--why", default="", help="Shown to everybody and stored in the audit log.")


RETURN_SYNONYMS = ("uncordon", "undrain", "resume")  # names that other schedulers use for "return"


PREVIEW_OPTION = click.option(
    "--preview", is_flag=True, help="Only show the affected work and reservations, and when the work ends."
)


class _HostGroup(click.Group):
    """A group that suggests ``return`` to users who type another scheduler's verb, such as ``undrain``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in RETURN_SYNONYMS:
            raise click.UsageError(
                f"There is no command {args[0]!r}; use 'return' to return a host to service.", ctx
            )
        return super().resolve_command(ctx, args)


@cli.group(cls=_HostGroup)
def host() -> None:
    """Show and manage one host: its GPUs, diagnostics, repair and maintenance."""


def host_path(name: str, verb: str) -> str:
    """Return the API path of a verb, such as ``cordon``, on a host."""
    return f"hosts/{quote(name, safe='', errors='replace')}/{verb}/"


PREVIEW_TITLES = {
    "cordon": "Cordon {}",
    "drain": "Drain {}",
    "return": "Return {} to service",
    "revoke": "Revoke the credential of {}",
    "off": "{} is powered off",
    "maintenance": "Maintenance of {}",
}


def print_preview(session: CliSession, name: str, body: dict[str, Any]) -> None:
    """Get the effects of a verb from the portal and print them, without carrying out the verb."""
    found = session.client.post(host_path(name, "preview"), body)
    if session.json:
        return output.print_json(found)
    output.print_line(f"{PREVIEW_TITLES[found['verb']].format(name)}: {found['text']}")
    print_affected_workloads(found["work"])
    if found["gpus"] is not None:
        away = {"return": "return to the pool", "maintenance": "are away meanwhile"}
        output.print_line(f"GPUs that {away.get(found['verb'], 'leave the pool')}: {found['gpus']}.")
    print_affected_reservations(found)
    if found["last_end"]:
        output.print_line(f"The last workload ends by {format_local_time(found['last_end'])} at the latest.")
    return output.print_line("Nothing is changed. To do it, run the command without --preview.")


def print_affected_workloads(rows: list[dict[str, Any]]) -> None:
    """Print the workloads that a verb affects, with the effect on each."""
    output.print_table(
        ("workload", "team", "owner", "what happens", "at the latest"),
        (
            (
                w["name"],
                w["team"],
                w["owner"],
                w["words"],
                format_local_time(w["by"]) if w["by"] else "at once",
            )
            for w in rows
        ),
        "No workload runs on it.",
    )


def print_affected_reservations(found: dict[str, Any]) -> None:
    """Print the reservations that move to other GPUs, and the reservations that could not be served."""
    unserved = found.get("unkept")
    unserved_ids = {row["id"] for row in unserved or ()}
    # An older portal sends no "moved".
    rows = found.get("moved") or found["reservations"]
    if moved := [row for row in rows if row["id"] not in unserved_ids]:
        output.print_line(f"Reservations that get other GPUs: {_reservation_list(moved)}.")
    if unserved:
        output.print_line(
            f"Reservations that could not be served: {_reservation_list(unserved)}. "
            "Their owners and the operators are notified."
        )
    elif unserved is not None:
        output.print_line("Every reservation can be served without it.")


def _reservation_list(rows: list[dict[str, Any]]) -> str:
    """Return the name, team, owner and window of each reservation."""
    return ", ".join(
        f"{row['name']} ({row['team']}, {row.get('owner', 'owner unknown')}, "
        f"{format_local_time(row['start'])} to {format_local_time(row['end'])})"
        for row in rows
    )


def require_reason(why: str, preview: bool) -> None:
    """Raise click.UsageError if there is no reason, except for a preview."""
    if not why and not preview:
        raise click.UsageError("Give the reason: --why.")
