"""Define the commands about cost centres."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.csv_import import import_file, print_import
from cli.formatting import format_local_time
from cli.param_types import TimestampType
from cli.session import CliSession, cli, command

ENTRY_OPTIONS = {
    "name": "Name, such as Imaging research.",
    "postal_address": "Postal address; \\n begins a new line.",
    "purchase_order": "Purchase order reference that statements show.",
}


@cli.group("cost-centre")
def cost_centre() -> None:
    """Show and change cost centres, and which of them pay for projects and dedicated pools."""


def _path(code: str, verb: str = "") -> str:
    return f"cost-centres/{quote(code, safe='')}/{verb}"


@command(cost_centre, "list")
def list_cost_centres(session: CliSession) -> None:
    """List the cost centres that you may see."""
    rows = list(session.client.pages("cost-centres/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("code", "name", "purchase order", "retired from"),
        (
            (row["code"], row["name"], row["purchase_order"], format_local_time(row["retired_from"]))
            for row in rows
        ),
        "You see no cost centre.",
    )


@command(cost_centre, "payers")
def list_shares(session: CliSession) -> None:
    """List which cost centres pay for projects and dedicated pools, newest date first."""
    rows = list(session.client.pages("cost-centre-shares/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("of", "code", "percent", "from"),
        (
            (
                row["project"] or f"pool {row['pool']}",
                row["code"],
                row["percent"],
                format_local_time(row["valid_from"]),
            )
            for row in rows
        ),
        "No cost centre pays for a project that you may see.",
    )


@command(cost_centre, "add")
@click.argument("code")
@click.option("--name", default="", help=ENTRY_OPTIONS["name"])
@click.option("--postal-address", default="", help=ENTRY_OPTIONS["postal_address"])
@click.option("--purchase-order", default="", help=ENTRY_OPTIONS["purchase_order"])
def add_cost_centre(session: CliSession, code: str, **given: str) -> None:
    """Add a cost centre to the directory."""
    answer = session.client.post("cost-centres/", {"code": code, **_entry(given)})
    output.print_json(answer) if session.json else output.print_line(f"Added: {_label(answer)}.")


@command(cost_centre, "change")
@click.argument("code")
@click.option("--name", help=ENTRY_OPTIONS["name"])
@click.option("--postal-address", help=ENTRY_OPTIONS["postal_address"])
@click.option("--purchase-order", help=ENTRY_OPTIONS["purchase_order"])
def change_cost_centre(session: CliSession, code: str, **given: str | None) -> None:
    """Change the name, the postal address or the purchase order reference of a cost centre."""
    changes = {name: value for name, value in given.items() if value is not None}
    answer = session.client.put(_path(code), _entry(changes))
    output.print_json(answer) if session.json else output.print_line(f"Changed: {_label(answer)}.")


@command(cost_centre, "retire")
@click.argument("code")
@click.option("--from", "retired_from", type=TimestampType(), help="Time from which it pays for nothing.")
@click.option("--undo", is_flag=True, help="Take the retirement back.")
@click.option("--why", default="", help="For the audit log.")
def retire_cost_centre(
    session: CliSession, code: str, retired_from: str | None, undo: bool, why: str
) -> None:
    """Retire a cost centre from a time on. Its history stays."""
    if (retired_from is None) != undo:
        raise click.UsageError("give either --from or --undo")
    answer = session.client.post(_path(code, "retire/"), {"retired_from": retired_from, "why": why})
    done = "No longer retired" if undo else "Retired"
    output.print_json(answer) if session.json else output.print_line(f"{done}: {_label(answer)}.")


@command(cost_centre, "split")
@click.argument("shares", nargs=-1, required=True, metavar="CODE=PERCENT...")
@click.option("--project", help="team/project whose work they pay.")
@click.option("--pool", help="Dedicated pool whose unused time they pay.")
@click.option(
    "--from", "valid_from", type=TimestampType(), required=True, help="A time in a month that is not closed."
)
@click.option("--preview", is_flag=True, help="Only show the amounts that move.")
@click.option("--why", default="", help="For the audit log.")
def set_split(
    session: CliSession,
    shares: tuple[str, ...],
    project: str | None,
    pool: str | None,
    valid_from: str,
    preview: bool,
    why: str,
) -> None:
    """Set which cost centres pay for a project or a dedicated pool, such as CC-1=60 CC-2=40."""
    body: dict[str, Any] = {"shares": [_share(text) for text in shares], "valid_from": valid_from, "why": why}
    body |= {name: value for name, value in (("project", project), ("pool", pool)) if value}
    if preview:
        answer = session.client.post("cost-centre-shares/preview/", body)
        if session.json:
            return output.print_json(answer)
        return output.print_table(
            ("cost centre", "charged", "after the change", "difference"),
            ((row["code"] or "none", row["before"], row["after"], row["moved"]) for row in answer["amounts"]),
            "Nothing is charged since that time, so no amount moves.",
        )
    rows = session.client.post("cost-centre-shares/", body)
    if session.json:
        return output.print_json(rows)
    text = ", ".join(f"{row['code']} {row['percent']} %" for row in rows)
    return output.print_line(
        f"Set: {text} of {project or pool}. Charged time is charged again in some minutes."
    )


@command(cost_centre, "import")
@click.argument("file", type=click.File("rb"))
@click.option("--preview", is_flag=True, help="Only show what the import would do.")
@click.option("--why", default="", help="For the audit log.")
def import_cost_centres(session: CliSession, file: Any, preview: bool, why: str) -> None:
    """Import a CSV file of cost centres, or of the shares that they pay. "-" reads standard input."""
    print_import(session, import_file(session, "cost-centre-import/", file, preview=preview, why=why))


def _share(text: str) -> dict[str, str]:
    code, _, percent = text.rpartition("=")
    return {"code": code, "percent": percent} if code else {"code": percent, "percent": "100"}


def _entry(given: dict[str, str]) -> dict[str, str]:
    return {name: value.replace("\\n", "\n") for name, value in given.items()}


def _label(row: dict[str, Any]) -> str:
    return f"{row['code']} {row['name']}".rstrip()
