"""Export a statement as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

from telemetry.core.csv_text import csv_line
from telemetry.models import Statement, StatementState
from telemetry.money.statement_lines import StatementEntry, statement_lines

# The files of a closed month keep the format of its close. Format 1 has no column ``billing_mode``.
FILE_FORMAT = 2
CSV_COLUMNS = (
    "month",
    "pool",
    "cost_centre",
    "team",
    "project",
    "workload_type",
    "model",
    "bucket",
    "billing_mode",
    "corrected_month",
    "gpu_hours",
    "covered_share",
    "used_share",
    "amount",
    "cost",
    "currency",
)


def statement_csv(month: date) -> str:
    """Return the lines of a month as CSV with a header.

    For a closed month of digest format 1, the digest that the statement stores is that of exactly this text.
    """
    statement = Statement.objects.filter(month=month).first()
    is_closed = statement is not None and statement.state == StatementState.CLOSED
    if statement is not None and is_closed and statement.digest_format == 1:
        return _csv_of_format_1(month, statement.currency)
    return entries_to_csv(month, statement_lines(month), csv_columns(format_of_files(statement)))


def format_of_files(statement: Statement | None) -> int:
    """Return the file format of a month: the format that its close has set, or the newest one for an open
    month.
    """
    is_closed = statement is not None and statement.state == StatementState.CLOSED
    return statement.file_format if is_closed and statement else FILE_FORMAT


def csv_columns(file_format: int) -> tuple[str, ...]:
    """Return the columns of statement lines in files of a format."""
    return tuple(name for name in CSV_COLUMNS if file_format > 1 or name != "billing_mode")


def _csv_of_format_1(month: date, currency: str) -> str:
    """Return the CSV of a month of digest format 1: one currency, and no column ``corrected_month``."""
    rows = [replace(row, currency=currency) for row in statement_lines(month)]
    return entries_to_csv(month, rows, [name for name in csv_columns(1) if name != "corrected_month"])


def entries_to_csv(month: date, rows: Iterable[StatementEntry], columns: Sequence[str]) -> str:
    """Return statement lines as CSV text with these columns."""
    lines = (csv_cells(month, line) for line in rows)
    return csv_line(columns) + "".join(csv_line([cells[name] for name in columns]) for cells in lines)


def csv_cells(month: date, line: StatementEntry) -> dict[str, Any]:
    """Return the values of a line's cells by column."""
    return {
        "month": f"{month:%Y-%m}",
        "pool": line.pool,
        "cost_centre": line.cost_centre,
        "team": line.team,
        "project": line.project,
        "workload_type": line.workload_type,
        "model": line.model,
        "bucket": line.bucket,
        "billing_mode": line.billing_mode,
        "corrected_month": f"{line.corrected_month:%Y-%m}" if line.corrected_month else "",
        "gpu_hours": line.gpu_hours,
        "covered_share": _rounded_share(line.covered_share),
        "used_share": _rounded_share(line.used_share),
        "amount": line.amount,
        "cost": line.cost,
        "currency": line.currency,
    }


def _rounded_share(share: float | None) -> Decimal | None:
    return None if share is None else Decimal(f"{share:.4f}")
