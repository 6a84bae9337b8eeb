"""Define the commands about statements and the settings of billing."""

from __future__ import annotations

from urllib.parse import quote

import click

from cli import output
from cli.session import CliSession, cli, command


@cli.group()
def statement() -> None:
    """Show the statements of cost centres."""


@cli.group()
def billing() -> None:
    """Show and change the settings of billing."""


@command(statement, "list")
@click.option("--month", help="Such as 2026-10. Default: every month.")
@click.option("--cost-centre", help="Its code.")
def list_statements(session: CliSession, month: str | None, cost_centre: str | None) -> None:
    """List the statements of cost centres, newest month first."""
    rows = list(session.client.pages("cost-centre-statements/", month=month, cost_centre=cost_centre))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("number", "name", "due", "total", "currency"),
        ((row["number"], row["name"], row["due_on"], row["total"], row["currency"]) for row in rows),
        "No statement. One is made for each cost centre when a month is closed.",
    )


@command(statement, "show")
@click.argument("number")
def show_statement(session: CliSession, number: str) -> None:
    """Show a statement with its lines and corrections, such as 2026-10/CC-4110/1."""
    found = session.client.get(f"cost-centre-statements/{quote(number)}/")
    if session.json:
        return output.print_json(found)
    row = found["statement"]
    output.print_line(f"Statement {row['number']} {row['name']}, due {row['due_on']}".strip())
    output.print_table(
        ("project", "person", "work", "part", "GPU", "corrects", "GPU-hours", "price", "amount"),
        (
            (
                line["project"],
                line["person"],
                line["workload"],
                line["part"].replace("_", " "),
                line["model"],
                (line["corrected_month"] or "")[:7],
                line["gpu_hours"],
                line["price"] or "",
                line["amount"],
            )
            for line in [*found["rows"], *found["corrections"]]
        ),
        "No lines.",
    )
    return output.print_line(f"Total {row['total']} {row['currency']}".rstrip())


@command(billing, "show")
def show_billing(session: CliSession) -> None:
    """Show the settings of billing."""
    found = session.client.get("billing/")
    output.print_json(found) if session.json else _print_billing(found)


@command(billing, "set")
@click.option("--tax-text", help="Tax note on each statement.")
@click.option("--payment-days", type=int, help="Days from a close until its statements are due.")
@click.option("--two-step-close/--one-step-close", default=None, help="Whether two people close a month.")
@click.option("--why", default="", help="For the audit log.")
def set_billing(
    session: CliSession,
    tax_text: str | None,
    payment_days: int | None,
    two_step_close: bool | None,
    why: str,
) -> None:
    """Change settings of billing. They apply to months that are closed later."""
    given = {"tax_text": tax_text, "payment_days": payment_days, "two_step_close": two_step_close}
    body = {name: value for name, value in given.items() if value is not None}
    found = session.client.put("billing/", {**body, "why": why})
    output.print_json(found) if session.json else _print_billing(found)


def _print_billing(found: dict[str, object]) -> None:
    people = "two people close a month" if found["two_step_close"] else "one person closes a month"
    output.print_line(
        f"Statements are due {found['payment_days']} days after the close; {people}; "
        f"tax note: {found['tax_text'] or 'none'}."
    )
