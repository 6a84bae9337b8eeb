"""Write whole rows of a worksheet at once.

XlsxWriter checks, stores and formats each cell in separate calls. In a workbook of many lines, these calls
take most of the time. The rows here have the same bytes as the rows of ``Worksheet.write_string`` and
``write_number``; ``tests/telemetry/test_row_sheet.py`` compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

from xlsxwriter.format import Format
from xlsxwriter.utility import xl_col_to_name
from xlsxwriter.worksheet import Worksheet

FIRST_DAY_OF_FORMAT = datetime(1899, 12, 30, tzinfo=UTC)
SECONDS_PER_DAY = 86_400
CACHED_TEXTS = 1 << 14
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ESCAPE_LIKE = re.compile("(_x[0-9a-fA-F]{4}_)")
_NOT_IN_XML = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]")


@dataclass(frozen=True)
class Column:
    """A column of a sheet.

    ``label`` is its heading and the attribute of a row that it shows. ``form`` is ``text``, ``month``,
    ``money``, or the name of a number format. An amount (``money``) has the format of its row's currency.
    """

    label: str
    form: str
    width: int = 14


class RowSheet(Worksheet):
    """A worksheet to which whole rows are appended. Its workbook has the option ``constant_memory``."""

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[int, Callable[[], str]] | None = None

    def append_row(self, row: int, cells: Callable[[], str]) -> None:
        """Append a row, counted from 0, below all rows that have cells.

        ``cells`` returns the XML of its cells. The cells use only columns in which an earlier row, such as
        the heading, has cells.
        """
        self._write_single_row(row)
        self._last, self.dim_rowmax = (row, cells), row

    def _write_single_row(self, current_row_num: int = 0) -> None:
        """Write the last row. XlsxWriter calls this when the next row begins, and at the end of the workbook.

        Formats get their numbers when a row is written, so the time of writing changes the bytes of the file.
        """
        if self._last is not None:
            (row, cells), self._last = self._last, None
            self.row_data_fh.write(f'<row r="{row + 1}">{cells()}</row>')
        super()._write_single_row(current_row_num)


class RowWriter:
    """Writes objects as rows. Each column shows one attribute."""

    def __init__(self, sheet: RowSheet, columns: Sequence[Column], formats: Mapping[str, Format]) -> None:
        """``formats`` has the format of each form of numbers, and of each currency."""
        self._sheet, self._formats = sheet, formats
        self._columns = [(xl_col_to_name(number), column.form) for number, column in enumerate(columns)]
        self._values = attrgetter(*(column.label for column in columns))
        self._styles: dict[str, str] = {}

    def write(self, row: int, values: Any) -> None:
        """Append ``values`` as a row, counted from 0. An attribute that is None or empty has no cell."""
        self._sheet.append_row(row, lambda: self._cells(row + 1, values))

    def _cells(self, number: int, values: Any) -> str:
        cells, styles = [], self._styles
        for (letter, form), value in zip(self._columns, self._values(values), strict=True):
            if value is None:
                continue
            if form == "text":
                if value:
                    cells.append(f'<c r="{letter}{number}" {inline_text(value)}')
            elif form == "month":
                cells.append(f'<c r="{letter}{number}" {inline_text(_month_text(value))}')
            else:
                shown = day_number(value) if form == "time" else float(value)
                name = values.currency if form == "money" else form
                style = styles.get(name) or self._style(name)
                cells.append(f'<c r="{letter}{number}" s="{style}"><v>{shown:.16G}</v></c>')
        return "".join(cells)

    def _style(self, name: str) -> str:
        # XlsxWriter numbers the formats in the order of their first use.
        style = str(self._formats[name]._get_xf_index())
        self._styles[name] = style
        return style


@lru_cache(CACHED_TEXTS)
def inline_text(text: str) -> str:
    """Return the XML of a text cell without its beginning, which names the cell's row and column.

    Characters that XML does not allow are escaped as in XlsxWriter.
    """
    shown = _ESCAPE_LIKE.sub(r"_x005F\1", plain_text(text))
    shown = _NOT_IN_XML.sub(lambda match: f"_x{ord(match.group()):04X}_", shown)
    preserved = ' xml:space="preserve"' if shown[:1].isspace() or shown[-1:].isspace() else ""
    return f't="inlineStr"><is><t{preserved}>{shown.translate(_ESCAPES)}</t></is></c>'


def plain_text(text: str) -> str:
    """Return a text that XlsxWriter writes as it is.

    XlsxWriter takes a text between ``<r>`` and ``</r>`` as XML. An apostrophe before it makes it text.
    """
    return f"'{text}" if text.startswith("<r>") else text


def day_number(at: datetime) -> float:
    """Return a time (UTC) as days since the first day of the format."""
    return (at - FIRST_DAY_OF_FORMAT).total_seconds() / SECONDS_PER_DAY


@lru_cache(64)
def _month_text(month: date) -> str:
    return f"{month:%Y-%m}"
