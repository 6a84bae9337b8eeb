"""Define the commands about credits and manual adjustments."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.session import CliSession, cli, command

STATES = ("proposed", "approved", "rejected", "withdrawn")


@cli.group()
def adjustments() -> None:
    """List, propose and decide credits and manual adjustments of statements."""


@command(adjustments, "list")
@click.option("--month", help="Month of the statement, such as 2026-10. Default: every month.")
@click.option("--cost-centre", help="Its code.")
@click.option("--state", type=click.Choice(STATES), help="Default: every state.")
def list_adjustments(
    session: CliSession, month: str | None, cost_centre: str | None, state: str | None
) -> None:
    """List the credits and adjustments that you may see, newest first."""
    rows = list(session.client.pages("adjustments/", month=month, cost_centre=cost_centre, state=state))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("number", "kind", "cost centre", "amount", "state", "author", "decided by", "reason"),
        (
            (
                row["number"],
                row["kind"],
                row["cost_centre"],
                f"{row['amount']} {row['currency']}",
                row["state"],
                row["author"],
                row["decided_by"],
                row["reason"],
            )
            for row in rows
        ),
        "You see no credit or adjustment.",
    )


@command(adjustments, "propose")
@click.argument("amount")
@click.option("--month", required=True, help="Month of the statement, such as 2026-10; it is not closed.")
@click.option("--reason", required=True, help="The reason, which the statement shows.")
@click.option(
    "--cost-centre",
    default="",
    help="Code of the cost centre. Default with --charge or --line: the cost centre of that line.",
)
@click.option("--credit", is_flag=True, help="Give back a part of charges; the amount is negative.")
@click.option("--charge", type=int, help="Charge line of a credit.")
@click.option("--line", type=int, help="Statement line of a credit, as FOCUS names it: 12 for line/12.")
@click.option("--of-month", help="Credit the cost centre's charges of this month, such as 2026-09.")
@click.option("--project", help="team/project that an adjustment belongs to.")
def propose_adjustment(
    session: CliSession,
    amount: str,
    month: str,
    reason: str,
    cost_centre: str,
    credit: bool,
    charge: int | None,
    line: int | None,
    of_month: str | None,
    project: str | None,
) -> None:
    """Propose a credit or an adjustment. Give a negative AMOUNT after two dashes: -- -12.50."""
    body: dict[str, Any] = {
        "kind": "credit" if credit else "adjustment",
        "amount": amount,
        "month": f"{month}-01",
        "reason": reason,
        "cost_centre": cost_centre,
        "charge": charge,
        "line": line,
        "credited_month": f"{of_month}-01" if of_month else None,
        "project": project,
    }
    row = session.client.post(
        "adjustments/", {name: value for name, value in body.items() if value not in (None, "")}
    )
    if session.json:
        return output.print_json(row)
    effect = row["effect"]
    return output.print_line(
        f"Proposed: {row['number']}. Once another person of finance approves it, the statement of "
        f"{row['cost_centre']} is {effect['after']} instead of {effect['before']} {effect['currency']}."
    )


@command(adjustments, "approve")
@click.argument("number")
@click.option("--note", default="", help="Stored with the decision.")
def approve_adjustment(session: CliSession, number: str, note: str) -> None:
    """Approve a proposal of another person. Its amount is on the statement at once."""
    _decide(session, number, "approve", {"note": note})


@command(adjustments, "reject")
@click.argument("number")
@click.option("--note", required=True, help="Why it is rejected.")
def reject_adjustment(session: CliSession, number: str, note: str) -> None:
    """Reject a proposal."""
    _decide(session, number, "reject", {"note": note})


@command(adjustments, "withdraw")
@click.argument("number")
@click.option("--reason", required=True, help="Why it is withdrawn.")
def withdraw_adjustment(session: CliSession, number: str, reason: str) -> None:
    """Withdraw a proposal, or propose the opposite amount of an approved adjustment."""
    _decide(session, number, "withdraw", {"reason": reason})


def _decide(session: CliSession, number: str, verb: str, body: dict[str, str]) -> None:
    row = session.client.post(f"adjustments/{quote(number, safe='')}/{verb}/", body)
    output.print_json(row) if session.json else output.print_line(f"{row['number']} is {row['state']}.")
