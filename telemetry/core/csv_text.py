"""Write CSV lines whose cells a spreadsheet never runs as formulas.

Every CSV file of the product is written by this module.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

LINE_END = "\r\n"
# Spreadsheets treat a cell that begins with one of these characters as a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
# The only cell with text in the last line of a complete file.
END_CELL = "# rows: {rows} sha256: {digest}"


@dataclass(frozen=True)
class CsvDialect:
    """The character between two cells, and the sign before the decimals of a number.

    Raises ValueError if both are the same, because then a number would look like two cells.
    """

    separator: str = ","
    decimal_sign: str = "."

    def __post_init__(self) -> None:
        if self.separator == self.decimal_sign:
            raise ValueError(f"decimal_sign: {self.decimal_sign!r} is also the separator")


PLAIN_CSV = CsvDialect()


class _Line:
    """A file whose ``write`` returns the text. The CSV writer returns the result of ``write``."""

    def write(self, text: str) -> str:
        return text


def csv_line(cells: Iterable[Any], dialect: CsvDialect = PLAIN_CSV) -> str:
    """Return one CSV line with its line end.

    A text that looks like a formula gets an apostrophe. Decimals are written without an exponent, times in
    ISO 8601, and None as an empty cell.
    """
    writer = csv.writer(_Line(), delimiter=dialect.separator, lineterminator=LINE_END)
    return str(writer.writerow([_cell(value, dialect.decimal_sign) for value in cells]))


def with_end_line(lines: Iterable[str], columns: int, dialect: CsvDialect = PLAIN_CSV) -> Iterator[str]:
    """Yield the lines of a file, and a last line that proves that the file was not cut off.

    The first line is the header. The first cell of the last line has the number of rows without the header,
    and the SHA-256 digest of all bytes before this line. The other cells of the last line are empty.
    """
    digest, rows = hashlib.sha256(), -1  # the header is not counted
    for line in lines:
        digest.update(line.encode())
        rows += 1
        yield line
    end = END_CELL.format(rows=rows, digest=digest.hexdigest())
    yield csv_line([end, *[""] * (columns - 1)], dialect)


def csv_safe_text(text: str) -> str:
    """Return ``text`` as the safe content of a CSV cell.

    A spreadsheet would run text that begins with ``=`` or a similar character as a formula. An apostrophe is
    put before such text, as OWASP recommends.
    """
    return f"'{text}" if text[:1] in FORMULA_STARTS else text


def _cell(value: Any, decimal_sign: str) -> Any:
    if isinstance(value, str):
        return csv_safe_text(value)
    if isinstance(value, Decimal):
        return f"{value:f}".replace(".", decimal_sign)
    if isinstance(value, float):
        return str(value).replace(".", decimal_sign)
    if isinstance(value, datetime):
        return value.isoformat()
    return "" if value is None else value
