"""Define the commands about the number of GPUs: the forecast of demand, and studies of a pool's size."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from cli import output
from cli.errors import EXIT_REFUSED, CliError
from cli.formatting import format_duration, format_local_time
from cli.param_types import DurationType
from cli.session import CliSession, cli, command

HOURS_PER_DAY = 24
POOL_OPTION = click.option("--pool", help="Only this pool.")


@cli.group()
def capacity() -> None:
    """Show the forecast of demand, and study how many GPUs a pool needs."""


@command(cli, "advice")
@click.option("--days", type=click.IntRange(1, 400), default=30, help="Runs of the last DAYS days.")
def advice(session: CliSession, days: int) -> None:
    """Show what to ask for next time, for your own work and the work of teams that you lead."""
    end = datetime.now(UTC)
    answer = session.client.get(
        "right-sizing/", start=(end - timedelta(days=days)).isoformat(), end=end.isoformat()
    )
    if session.json:
        return output.print_json(answer)
    return output.print_table(
        ("advice", "person", "evidence", "saves GPU-hours", "a month"),
        (
            (
                row["headline"],
                row["person"],
                row["evidence"],
                f"{row['saved_hours']:,.0f}",
                "unknown"
                if row["saved_per_month"] is None
                else f"{row['currency']} {row['saved_per_month']}",
            )
            for row in answer["advice"]
        ),
        "No ended run could have asked for less, or none has a report.",
    )


@command(capacity, "forecast")
@POOL_OPTION
@click.option("--model", help="Only this model of GPUs.")
def forecast(session: CliSession, pool: str | None, model: str | None) -> None:
    """Show the expected demand of the next 4 weeks in GPUs, and the error of past forecasts."""
    answer = session.client.get("demand-forecast/", pool=pool, model=model)
    if session.json:
        return output.print_json(answer)
    return output.print_table(
        ("pool", "model", "GPUs", "wanted", "range of a day", "past error", "against last week"),
        (
            (
                part["pool"],
                part["model"],
                str(part["gpus"]),
                _mean_gpus(part["days"], "expected"),
                f"{_mean_gpus(part['days'], 'low')} to {_mean_gpus(part['days'], 'high')}",
                _percent(part["backtest"]["error_share"]),
                _number(part["backtest"]["mase"]),
            )
            for part in answer["parts"]
        ),
        "You see no pool with GPUs.",
    )


@command(capacity, "studies")
def studies(session: CliSession) -> None:
    """List the studies of the number of GPUs, the newest first."""
    rows = list(session.client.pages("capacity-studies/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("id", "pool", "model", "wait to keep", "state", "requested"),
        (
            (
                row["id"],
                row["pool"],
                row["model"] or "each",
                format_duration(row["wait_limit_seconds"]),
                row["state"],
                format_local_time(row["created_at"]),
            )
            for row in rows
        ),
        "No study has been requested.",
    )


@command(capacity, "study")
@click.argument("pool")
@click.option("--model", default="", help="Only this model of GPUs; default: each model of the pool.")
@click.option(
    "--wait",
    "wait_limit_seconds",
    type=DurationType(),
    required=True,
    help="The wait that 19 of 20 requests should keep, such as 1h.",
)
@click.option("--why", default="", help="Stored in the audit log.")
def study(session: CliSession, pool: str, model: str, wait_limit_seconds: int, why: str) -> None:
    """Replay the last 13 weeks of POOL with -20 % to +40 % of its GPUs, in the background."""
    body = {"pool": pool, "model": model, "wait_limit_seconds": wait_limit_seconds, "why": why}
    row = session.client.post("capacity-studies/", body)
    if session.json:
        return output.print_json(row)
    return output.print_line(f"Study {row['id']} has been requested. See: gpupool capacity show {row['id']}")


@command(capacity, "show")
@click.argument("id_", metavar="[ID]", required=False)
def show(session: CliSession, id_: str | None) -> None:
    """Show the results of a study so far: wait, idle time and cost of each number of GPUs.

    Without ID, show the newest study.
    """
    answer = session.client.get(f"capacity-studies/{id_ or _newest(session)}/")
    if session.json:
        return output.print_json(answer)
    row = answer["study"]
    output.print_facts(
        [
            ("pool", row["pool"]),
            ("wait to keep", format_duration(row["wait_limit_seconds"])),
            ("state", f"{row['state']}, {_percent(row['progress'])} done"),
        ]
    )
    for model in answer["models"]:
        _print_sizes(model, answer["currency"])
    for note in answer["notes"]:
        output.print_line(note)
    return None


def _print_sizes(model: dict[str, Any], currency: str) -> None:
    output.print_table(
        (
            model["model"],
            "GPUs",
            "half wait",
            "19 of 20 wait",
            "idle",
            f"{currency} a month",
            "keeps the wait",
        ),
        (
            (
                f"{size['change']:+d} %",
                str(size["gpus"]),
                _wait(size["p50_seconds"]),
                _wait(size["p95_seconds"]),
                _percent(size["idle"]),
                size["cost_per_month"] or "unknown",
                "yes" if size["keeps_limit"] else "no",
            )
            for size in model["sizes"]
        ),
        "",
    )
    best = model["recommended"]
    output.print_line(
        f"{best['gpus']} GPUs are the fewest that keep the wait." if best else "No number keeps the wait."
    )
    output.print_line(
        f"Difference between the replayed and the recorded waits: {_percent(model['wait_error'])}"
    )


def _newest(session: CliSession) -> str:
    row = next(iter(session.client.pages("capacity-studies/")), None)
    if row is None:
        raise CliError("no study has been requested; see: gpupool capacity study --help", code=EXIT_REFUSED)
    return str(row["id"])


def _mean_gpus(days: list[dict[str, Any]], name: str) -> str:
    if not days:
        return "unknown"
    return f"{sum(day[name] for day in days) / len(days) / HOURS_PER_DAY:,.1f}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share * 100:.0f} %"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _wait(seconds: float | None) -> str:
    return "unknown" if seconds is None else format_duration(round(seconds))
