"""Define the commands about chargeback."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.session import CliSession, cli, command


@cli.group()
def chargeback() -> None:
    """Show the charges of a month and its unusual spend."""


@command(chargeback, "show")
@click.option("--month", help="Such as 2026-10. Default: the present month.")
def show_chargeback(session: CliSession, month: str | None) -> None:
    """Show the charges of a month, the change from the month before, the forecast and the budget.

    Finance and auditors also see the equation: how charges and uncharged time add up to the cost of the GPUs.
    """
    found = session.client.get("chargeback/", month=month)
    if session.json:
        return output.print_json(found)
    overview = found["overview"]
    output.print_line(found["scope"]["text"])
    output.print_facts(_facts(overview))
    return _print_change(overview["change"])


def _print_change(change: dict[str, Any]) -> None:
    steps = [(step["kind"], step["amount"], step["note"]) for step in change["steps"]]
    rows = [("before", change["before"], ""), *steps, ("now", change["now"], "")]
    output.print_table(
        ("step", "amount", "note"),
        rows if change["before"] is not None else (),
        "The month is not compared with the month before.",
    )


def _facts(overview: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the figures of a month with their labels. A figure that does not exist is left out."""
    currency, forecast, budget = overview["currency"], overview["forecast"], overview["budget"]
    facts = [
        ("month", f"{overview['month'][:7]}, {'closed' if overview['closed'] else 'open'}"),
        ("charged", f"{overview['charged']} {currency}"),
        ("GPU-hours", f"{overview['gpu_hours']:,.1f} in {overview['elapsed_days']:.1f} days"),
    ]
    if forecast:
        facts.append(
            ("forecast", f"{forecast['expected']} {currency}, {forecast['low']} to {forecast['high']}")
        )
    if budget:
        facts.append(("budget left", f"{budget['left']} of {budget['amount']} {currency}"))
    if overview["equation"]:
        terms = {0: "=", 1: "+", -1: "-"}
        text = " ".join(f"{terms[term['sign']]} {term['amount']}" for term in overview["equation"]["terms"])
        facts += [("equation", text), ("difference", overview["equation"]["difference"])]
    return facts


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
        "Nothing unusual is found." if found["searched_at"] else "The month has not been searched yet.",
    )


def _reason(row: dict[str, object]) -> str:
    given = row["explanation"]
    if isinstance(given, dict):
        return f"{given['reason']} ({given['author']})"
    return "to explain" if row["needs_explanation"] else "explains itself"


@command(chargeback, "ask")
@click.argument("spend", type=int)
@click.option("--question", required=True, help="Sent as a notice, and kept in the audit log.")
def ask_about_spend(session: CliSession, spend: int, question: str) -> None:
    """Ask the person of unusual spend and the leads of its team for the reason."""
    row = session.client.post(f"unusual-spend/{spend}/ask/", {"question": question})
    output.print_json(row) if session.json else output.print_line(f"Asked: {', '.join(row['asked'])}.")


@command(chargeback, "explain")
@click.argument("spend", type=int)
@click.option("--reason", required=True, help="Why the spend is right.")
def explain_unusual_spend(session: CliSession, spend: int, reason: str) -> None:
    """Give the reason for unusual spend by its id, as 'chargeback unusual' lists it."""
    row = session.client.post(f"unusual-spend/{spend}/explain/", {"reason": reason})
    output.print_json(row) if session.json else output.print_line(f"Explained by {row['author']}.")
