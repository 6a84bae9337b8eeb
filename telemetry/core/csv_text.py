"""Write CSV lines whose cells a spreadsheet never runs as formulas.

Every CSV file of the product is written by this module.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

LINE_END = "\r\n"
# Spreadsheets treat a cell that begins with one of these characters as a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class _Line:
    """A file whose ``write`` returns the text, which the CSV writer then returns."""

    def write(self, text: str) -> str:
        return text


def csv_line(cells: Iterable[Any]) -> str:
    """Return one CSV line with its line end.

    A text that looks like a formula gets an apostrophe. Decimals are written without an exponent, times in
    ISO 8601, and None as an empty cell.
    """
    writer = csv.writer(_Line(), lineterminator=LINE_END)
    return str(writer.writerow([_cell(value) for value in cells]))


def csv_safe_text(text: str) -> str:
    """Return ``text`` as the safe content of a CSV cell.

    A spreadsheet would run text that begins with ``=`` or a similar character as a formula. An apostrophe is
    put before such text, as OWASP recommends.
    """
    return f"'{text}" if text[:1] in FORMULA_STARTS else text


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return csv_safe_text(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.isoformat()
    return "" if value is None else value
