"""Test that appended rows have the same bytes as rows that XlsxWriter writes cell by cell."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from xlsxwriter import Workbook
from xlsxwriter.format import Format

from telemetry.exports.row_sheet import Column, RowSheet, RowWriter, day_number, plain_text

OPTIONS = {"constant_memory": True, "strings_to_formulas": False}
FORMS = {"exact": "#,##0.000000", "time": "yyyy-mm-dd hh:mm:ss", "EUR": "#,##0.00", "JPY": "#,##0"}
COLUMNS = (
    Column("name", "text"),
    Column("start", "time"),
    Column("month", "month"),
    Column("hours", "exact"),
    Column("amount", "money"),
    Column("currency", "text"),
)
TEXTS = (
    "plain",
    "",
    " a b ",
    "\u00a0x",
    "line\nline\t",
    "\x00\x0b\r\x1f\ufffe\uffff",
    "_x0041_ &amp; <a b=\"c\" d='e'>",
    "<r><t>bold</t></r>",
    "=1+1",
    "🚀 日本 \u202e",
)
NUMBERS = ("0", "-0.000001", "123456789012.345678", "1E-7", "0.1", "100.00", "99999999999999999999")


def row_of(index: int) -> Any:
    return SimpleNamespace(
        name=TEXTS[index % len(TEXTS)],
        start=datetime(2026, 1, 1, 7, index % 60, 13, 250_000, tzinfo=UTC) if index % 3 else None,
        month=date(2026, 1 + index % 12, 1) if index % 2 else None,
        hours=Decimal(NUMBERS[index % len(NUMBERS)]),
        amount=Decimal(NUMBERS[-index % len(NUMBERS)]),
        currency="EUR" if index % 4 else "JPY",
    )


def append(sheet: RowSheet, formats: dict[str, Format], rows: list[Any]) -> None:
    writer = RowWriter(sheet, COLUMNS, formats)
    for number, row in enumerate(rows, 1):
        writer.write(number, row)


def write_cells(sheet: RowSheet, formats: dict[str, Format], rows: list[Any]) -> None:
    for number, row in enumerate(rows, 1):
        for at, column in enumerate(COLUMNS):
            value = getattr(row, column.label)
            if value is None or value == "":
                continue
            if column.form == "text":
                sheet.write_string(number, at, plain_text(value))
            elif column.form == "month":
                sheet.write_string(number, at, f"{value:%Y-%m}")
            else:
                shown = day_number(value) if column.form == "time" else float(value)
                name = row.currency if column.form == "money" else column.form
                sheet.write_number(number, at, shown, formats[name])


def book_of(write: Callable[[RowSheet, dict[str, Format], list[Any]], None], *sizes: int) -> bytes:
    """Return a workbook with a sheet for each number of rows, and a total below the rows of each sheet."""
    file = io.BytesIO()
    book = Workbook(file, OPTIONS)
    book.set_properties({"created": datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)})
    formats = {name: book.add_format({"num_format": form}) for name, form in FORMS.items()}
    bold = book.add_format({"bold": True})
    for size in sizes:
        sheet = book.add_worksheet(worksheet_class=RowSheet)
        assert isinstance(sheet, RowSheet)
        for at, column in enumerate(COLUMNS):
            sheet.write_string(0, at, column.label, bold)
        write(sheet, formats, [row_of(index) for index in range(size)])
        if size:
            sheet.write_formula(size + 2, 3, "=SUM(D2:D3)", formats["exact"], 1.5)
    book.close()
    return file.getvalue()


@pytest.mark.parametrize("sizes", [(70,), (1, 0, 1), (2, 1, 3)])
def test_rows_and_single_cells_give_the_same_bytes(sizes: tuple[int, ...]) -> None:
    assert book_of(append, *sizes) == book_of(write_cells, *sizes)


def test_a_time_is_written_as_a_number_of_days() -> None:
    assert day_number(datetime(1900, 1, 1, 12, tzinfo=UTC)) == 2.5
