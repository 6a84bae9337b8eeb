"""Define the commands about chargeback."""

from __future__ import annotations

from urllib.parse import quote

import click

from cli import output
from cli.session import CliSession, cli, command


@cli.group()
def chargeback() -> None:
    """Show the charges of a month and its unusual spend."""


@command(chargeback, "unusual")
@click.argument("month")
def list_unusual_spend(session: CliSession, month: str) -> None:
    """List the unusual spend of a month, such as 2026-10, with the reasons that people gave."""
    found = session.client.get(f"statements/{quote(month)}/unusual-spend/")
    if session.json:
        return output.print_json(found)
    return output.print_table(
        ("id", "spend", "evidence", "reason"),
        ((row["id"], row["title"], row["detail"], _reason(row)) for row in found["results"]),
        "Nothing unusual is found." if found["searched_at"] else "The month is not searched yet.",
    )


def _reason(row: dict[str, object]) -> str:
    given = row["explanation"]
    if isinstance(given, dict):
        return f"{given['reason']} ({given['author']})"
    return "to explain" if row["needs_explanation"] else "explains itself"


@command(chargeback, "explain")
@click.argument("spend", type=int)
@click.option("--reason", required=True, help="Why the spend is right.")
def explain_unusual_spend(session: CliSession, spend: int, reason: str) -> None:
    """Give the reason for unusual spend by its id, as 'chargeback unusual' lists it."""
    row = session.client.post(f"unusual-spend/{spend}/explain/", {"reason": reason})
    output.print_json(row) if session.json else output.print_line(f"Explained by {row['author']}.")
