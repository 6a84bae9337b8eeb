"""Stream rows as a CSV download, with a last line that shows that the file is complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from portal.streamed_file import StreamedFile
from telemetry.core.csv_text import PLAIN_CSV, CsvDialect, csv_line, with_end_line

MAX_CSV_ROWS = 50_000
LINES_PER_PART = 500


def timed_file_name(name: str, now: datetime) -> str:
    """Return the name of a file whose content changes all the time, such as ``queue-20260302-0900.csv``."""
    return f"{name}-{now:%Y%m%d-%H%M}.csv"


def csv_response(file_name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> StreamedFile:
    """Return ``rows`` as a streamed CSV file with the header ``head``.

    Cells that a spreadsheet would execute as formulas are escaped.
    """
    return _download(file_name, _lines(head, rows))


def complete_csv_response(
    file_name: str, head: Sequence[str], rows: Iterable[Sequence[Any]], dialect: CsvDialect = PLAIN_CSV
) -> StreamedFile:
    """Return a streamed CSV file whose last line proves that the file was not cut off.

    The first cell of the last line has the number of rows, and the SHA-256 digest of all bytes before this
    line. The other cells are empty. The header is not counted as a row.
    """
    return _download(file_name, with_end_line(_lines(head, rows, dialect), len(head), dialect))


def _download(file_name: str, lines: Iterator[str]) -> StreamedFile:
    return StreamedFile(file_name, "text/csv; charset=utf-8", _parts(lines))


def _parts(lines: Iterator[str]) -> Iterator[str]:
    while part := "".join(islice(lines, LINES_PER_PART)):
        yield part


def _lines(
    head: Sequence[str], rows: Iterable[Sequence[Any]], dialect: CsvDialect = PLAIN_CSV
) -> Iterator[str]:
    yield csv_line(head, dialect)
    yield from (csv_line(row, dialect) for row in rows)
