"""Export a statement as CSV."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any

from telemetry.core.csv_text import csv_line
from telemetry.models import Statement, StatementState
from telemetry.money.statement_lines import StatementEntry, statement_lines

CSV_COLUMNS = (
    "month",
    "pool",
    "cost_centre",
    "team",
    "project",
    "workload_type",
    "model",
    "bucket",
    "gpu_hours",
    "covered_share",
    "used_share",
    "amount",
    "cost",
    "currency",
)


def statement_csv(month: date, currency: str = "") -> str:
    """Return the lines of a month as CSV with a header.

    For a closed month, the digest that the statement stores is the digest of exactly this text.
    """
    statement = Statement.objects.filter(month=month).first()
    if statement is not None and statement.state == StatementState.CLOSED:
        currency = statement.currency
    return entries_to_csv(month, statement_lines(month), currency)


def entries_to_csv(month: date, rows: Iterable[StatementEntry], currency: str) -> str:
    """Return statement lines as CSV text."""
    return csv_line(CSV_COLUMNS) + "".join(csv_line(_cells(month, line, currency)) for line in rows)


def _cells(month: date, line: StatementEntry, currency: str) -> list[Any]:
    return [
        f"{month:%Y-%m}",
        line.pool,
        line.cost_centre,
        line.team,
        line.project,
        line.workload_type,
        line.model,
        line.bucket,
        line.gpu_hours,
        _format_share(line.covered_share),
        _format_share(line.used_share),
        line.amount,
        line.cost,
        currency,
    ]


def _format_share(share: float | None) -> str:
    return "" if share is None else f"{share:.4f}"
