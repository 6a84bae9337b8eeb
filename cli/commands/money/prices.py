"""Define the commands about the rate card: prices, price factors and the currency of months."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from cli import output
from cli.param_types import TimestampType
from cli.session import CliSession, cli, command

PRIORITY_TYPE = click.Choice(["low", "normal", "high", "critical"])
WORKLOAD_TYPE = click.Choice(["training", "inference", "interactive", "other"])
FROM_OPTION = click.option(
    "--from", "valid_from", type=TimestampType(), required=True, help="From this time on."
)


@cli.group()
def price() -> None:
    """Show and set prices of GPU-hours."""


@cli.group("price-factor")
def price_factor() -> None:
    """Show and set the factors on the price of work, by priority and workload type."""


@cli.group()
def currency() -> None:
    """Show and change the currency of billing months."""


@command(price, "list")
def list_prices(session: CliSession) -> None:
    """List the rate card, newest first."""
    rows = list(session.client.pages("prices/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("model", "pool", "from", "price per GPU-hour", "cost", "note"),
        (
            (
                row["model"],
                row["pool"] or "every pool",
                _day_text(row["valid_from"]),
                f"{row['currency']} {row['price']}",
                row["cost"],
                row["note"],
            )
            for row in rows
        ),
        "There is no price.",
    )


@command(price, "set")
@click.option("--model", required=True, help="Model of the GPUs, such as H100-80GB.")
@click.option("--pool", help="Default: every pool.")
@click.option("--cost", required=True, help="Owner's cost of a GPU-hour.")
@click.option("--price", required=True, help="Price of a GPU-hour for teams.")
@click.option("--currency", help="Default: the currency of the month in which it begins.")
@FROM_OPTION
@click.option("--note", help="How the cost was computed.")
def set_price(session: CliSession, **given: Any) -> None:
    """Set the cost and the price of a GPU-hour from a time on."""
    row = session.client.post("prices/", _without_none(given))
    start = _day_text(row["valid_from"])
    text = f"{row['model']} costs {row['currency']} {row['price']} an hour from {start} on."
    output.print_json(row) if session.json else output.print_line(text)


@command(price_factor, "list")
def list_factors(session: CliSession) -> None:
    """List the factors, newest first."""
    rows = list(session.client.pages("price-factors/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("work", "pool", "from", "factor", "note"),
        (
            (
                _work_text(row),
                row["pool"] or "every shared pool",
                _day_text(row["valid_from"]),
                row["factor"],
                row["note"],
            )
            for row in rows
        ),
        "There is no factor: all work has the price of the rate card.",
    )


@command(price_factor, "set")
@click.option("--priority", type=PRIORITY_TYPE, help="Either this or --type.")
@click.option("--type", "workload_type", type=WORKLOAD_TYPE, help="Either this or --priority.")
@click.option("--pool", help="Default: every shared pool.")
@click.option("--factor", required=True, help="Such as 0.8; 1 is the price itself.")
@FROM_OPTION
@click.option("--note", help="Shown on the rate card.")
def set_factor(session: CliSession, **given: Any) -> None:
    """Multiply the price of work of a priority or of a type from a time on."""
    row = session.client.post("price-factors/", _without_none(given))
    start = _day_text(row["valid_from"])
    text = f"The price of {_work_text(row)} is multiplied by {row['factor']} from {start} on."
    output.print_json(row) if session.json else output.print_line(text)


@command(currency, "list")
def list_currencies(session: CliSession) -> None:
    """List the currencies of months, newest first."""
    rows = list(session.client.pages("currencies/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("currency", "from month", "decimals"),
        ((row["currency"], row["first_month"][:7], row["decimals"]) for row in rows),
        "No currency is set.",
    )


@command(currency, "change")
@click.argument("code", metavar="CODE")
@click.option(
    "--from-month", "first_month", type=click.DateTime(["%Y-%m"]), required=True, help="Such as 2026-12."
)
@click.option("--why", default="", help="Stored in the audit log.")
def change_currency(session: CliSession, code: str, first_month: datetime, why: str) -> None:
    """Charge in another currency from a month on. Each model needs a price in it from that month on."""
    row = session.client.post(
        "currencies/", {"currency": code, "first_month": f"{first_month:%Y-%m-%d}", "why": why}
    )
    text = f"Charges are in {row['currency']} from {row['first_month'][:7]} on."
    output.print_json(row) if session.json else output.print_line(text)


def _without_none(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _work_text(row: dict[str, Any]) -> str:
    """Return the work of a factor: ``priority low`` or ``type training``."""
    return f"priority {row['priority']}" if row["priority"] else f"type {row['workload_type']}"


def _day_text(text: str) -> str:
    """Return a time as local date and clock time."""
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M}"
