"""Write the statement lines and the charge lines of a month as CSV."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from itertools import islice
from typing import Any

from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.core.csv_text import CsvDialect, csv_line, with_end_line
from telemetry.exports.export_model import ExportOptions, ExportScope, MonthState, month_state
from telemetry.exports.export_rows import ExportedCharge, export_charges, export_entries
from telemetry.money.statement_export import csv_cells, csv_columns, statement_csv

LINES_PER_PART = 500
# Columns that every file has: the state of the month, and whose charges the file contains.
FILE_COLUMNS = ("state", "scope")
AMOUNT_COLUMNS = (
    "id",
    "start",
    "end",
    "bucket",
    "model",
    "gpu_seconds",
    "price_per_gpu_hour",
    "price_factor",
    "charged",
)
OWNER_COLUMNS = ("cost_centre", "share_percent", "team", "project", "user", "workload")
TRACE_COLUMNS = ("allocation", "corrects", "corrected_month", "simulated", "currency")


def statement_file(month: date, scope: ExportScope, options: ExportOptions) -> Iterator[bytes]:
    """Yield the statement lines of a month as CSV.

    If a month was closed with digest format 1, its statement stores the digest of this file. The file of such
    a month has the same bytes as at the close.
    """
    state = month_state(month, options.currency)
    if scope.is_whole and state.is_closed and state.statement and state.statement.digest_format == 1:
        yield statement_csv(month).encode()
        return
    names = [name for name in csv_columns(state.file_format) if name != "cost" or scope.with_cost]
    entries = export_entries(month, scope, state)
    rows = ([csv_cells(month, entry)[name] for name in names] for entry in entries)
    yield from _file(names, rows, scope, state, options.dialect)


def charge_lines_file(month: date, scope: ExportScope, options: ExportOptions) -> Iterator[bytes]:
    """Yield the charge lines of a month as CSV, oldest first."""
    state = month_state(month, options.currency)
    cost = ("cost",) if scope.with_cost else ()
    names = [*AMOUNT_COLUMNS, *cost, *OWNER_COLUMNS, *TRACE_COLUMNS]
    rows = (_charge_cells(line, names) for line in export_charges(month, scope))
    yield from _file(names, rows, scope, state, options.dialect)


def _charge_cells(line: ExportedCharge, names: list[str]) -> list[Any]:
    computed = {
        "gpu_seconds": Decimal(line.slot_seconds) / SLOTS_PER_GPU,
        "corrected_month": f"{line.corrected_month:%Y-%m}" if line.corrected_month else None,
    }
    return [computed[name] if name in computed else getattr(line, name) for name in names]


def _file(
    names: list[str], rows: Iterator[list[Any]], scope: ExportScope, state: MonthState, dialect: CsvDialect
) -> Iterator[bytes]:
    """Yield a CSV file in parts of ``LINES_PER_PART`` lines. Its last line proves that it is complete."""
    head = [*names, *FILE_COLUMNS]
    lines = with_end_line(_lines(head, rows, [state.label, scope.kind], dialect), len(head), dialect)
    while part := "".join(islice(lines, LINES_PER_PART)):
        yield part.encode()


def _lines(head: list[str], rows: Iterator[list[Any]], ends: list[str], dialect: CsvDialect) -> Iterator[str]:
    yield csv_line(head, dialect)
    for row in rows:
        yield csv_line([*row, *ends], dialect)
