"""Export a statement as CSV."""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Iterable
from datetime import date

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
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\r\n")
    writer.writerow(CSV_COLUMNS)
    for line in rows:
        writer.writerow(
            [
                f"{month:%Y-%m}",
                *(csv_safe_text(text) for text in (line.pool, line.cost_centre, line.team, line.project)),
                line.workload_type,
                line.model,
                line.bucket,
                f"{line.gpu_hours:f}",
                _format_share(line.covered_share),
                _format_share(line.used_share),
                f"{line.amount:f}",
                f"{line.cost:f}",
                currency,
            ]
        )
    return out.getvalue()


def _format_share(share: float | None) -> str:
    return "" if share is None else f"{share:.4f}"


def csv_safe_text(text: str) -> str:
    """Return ``text`` as the safe content of a CSV cell.

    A spreadsheet would run text that begins with ``=`` or a similar character as a formula. An apostrophe is
    put before such text, as OWASP recommends.
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
