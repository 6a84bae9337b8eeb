"""Define the commands about statements and the settings of billing."""

from __future__ import annotations

from collections.abc import Callable
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


@command(statement, "rehearse")
@click.argument("month")
def rehearse_month(session: CliSession, month: str) -> None:
    """Run all checks of an open month, such as 2026-10, and store the results for its pages."""
    found = session.client.post(f"statements/{quote(month)}/checks/", {})
    if session.json:
        return output.print_json(found)
    failed = [check["check"] for check in found["checks"] if not check["ok"]] + found["focus"]["broken"]
    return output.print_line("\n".join(["Stored.", *(f"fails: {name}" for name in failed)]))


@command(statement, "check")
@click.argument("month")
@click.option("--audit", is_flag=True, help="Also compare every line with the facts; may take a minute.")
def check_month(session: CliSession, month: str, audit: bool) -> None:
    """Run the checks of a close of a month, such as 2026-10. It changes and stores nothing."""
    found = session.client.get(f"statements/{quote(month)}/checks/", audit=audit)
    if session.json:
        return output.print_json(found)
    output.print_table(
        ("result", "check", "figures"),
        (
            (
                "passes" if check["ok"] else "fails",
                check["check"],
                "" if check["ok"] else str(check["figures"]),
            )
            for check in found["checks"]
        ),
        "No checks.",
    )
    for payer in found["unmapped"]:
        output.print_line(f"{payer['name']} has no cost centre. {payer['who_acts']}")
    proposal = found["proposal"]
    if proposal:
        output.print_line(
            f"{proposal['proposed_by']} proposed to close it. The proposal holds until"
            f" {proposal['expires_at']}."
        )
    return output.print_line(f"The month {'is over' if found['over'] else 'ends at ' + found['ends_at']}.")


def _step_of_close(function: Callable[..., None]) -> Callable[..., None]:
    """Add the argument and the options that both steps of a close have. The request has the same fields."""
    for option in (
        click.option(
            "--missing-samples-reason", default="", help="Why to close although samples are missing."
        ),
        click.option("--why", default="", help="For the audit log."),
        click.argument("month"),
    ):
        function = option(function)
    return function


@command(statement, "propose")
@_step_of_close
def propose_month(session: CliSession, month: str, **body: str) -> None:
    """Propose to close a month. Another person closes it within three days."""
    row = session.client.post(f"statements/{quote(month)}/propose/", body)
    output.print_json(row) if session.json else output.print_line(
        f"Proposed. Another person can close {month} until {row['expires_at']}."
    )


@command(statement, "close")
@_step_of_close
def close_month(session: CliSession, month: str, **body: str) -> None:
    """Close a past month for good: run its checks and make its statements."""
    row = session.client.post(f"statements/{quote(month)}/close/", body)
    output.print_json(row) if session.json else output.print_line(
        f"{month} is closed. Digest {row['digest']}."
    )


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


@command(billing, "modes")
def list_modes(session: CliSession) -> None:
    """List the billing modes of teams, newest first. A team without one has chargeback."""
    rows = list(session.client.pages("billing/modes/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("team", "from", "mode", "set by"),
        ((row["team"], row["first_month"][:7], row["mode"], row["created_by"]) for row in rows),
        "Every team has chargeback.",
    )


@command(billing, "set-mode")
@click.argument("team")
@click.argument("mode", type=click.Choice(("chargeback", "showback")))
@click.option("--from", "first_month", required=True, help="A month that is not closed, such as 2026-11.")
@click.option("--why", default="", help="For the audit log.")
def set_mode(session: CliSession, team: str, mode: str, first_month: str, why: str) -> None:
    """Set whether the charges of a team are invoiced (chargeback) or shown only (showback)."""
    body = {"team": team, "mode": mode, "first_month": f"{first_month}-01", "why": why}
    row = session.client.post("billing/modes/", body)
    output.print_json(row) if session.json else output.print_line(
        f"{row['team']} has {row['mode']} from {row['first_month'][:7]} on."
    )


@command(billing, "zones")
def list_zones(session: CliSession) -> None:
    """List the time zones of billing months. Before the first one, months are in UTC."""
    rows = list(session.client.pages("billing/zones/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("from", "time zone", "set by"),
        ((row["first_month"][:7], row["time_zone"], row["created_by"] or "") for row in rows),
        "Billing months are in UTC.",
    )


@command(billing, "set-zone")
@click.argument("time_zone")
@click.option("--from", "first_month", required=True, help="A month that has not begun, such as 2027-01.")
@click.option("--why", default="", help="For the audit log.")
def set_zone(session: CliSession, time_zone: str, first_month: str, why: str) -> None:
    """Set the time zone of billing months, such as Europe/Berlin, from a month on."""
    body = {"first_month": f"{first_month}-01", "time_zone": time_zone, "why": why}
    row = session.client.post("billing/zones/", body)
    output.print_json(row) if session.json else output.print_line(
        f"Billing months are in {row['time_zone']} from {row['first_month'][:7]} on."
    )
