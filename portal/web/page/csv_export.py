"""Stream rows as a CSV download, with a last line that shows that the file is complete."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse

from telemetry.core.csv_text import csv_line

MAX_CSV_ROWS = 50_000
LINES_PER_PART = 500
# The only cell with text in the last line of a complete file.
END_CELL = "# rows: {rows} sha256: {digest}"


class CsvResponse(StreamingHttpResponse):
    """A CSV download that is written while it is sent, so that its size needs no memory.

    Django would collect all parts of a synchronous iterator first when it serves them asynchronously.
    """

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts. Each is made in the thread of the request, which owns the database connection."""
        parts = iter(self)
        while (part := await sync_to_async(_next_part)(parts)) is not None:
            yield part


def _next_part(parts: Iterator[bytes]) -> bytes | None:
    return next(parts, None)


def timed_file_name(name: str, now: datetime) -> str:
    """Return the name of a file whose content changes all the time, such as ``queue-20260302-0900.csv``."""
    return f"{name}-{now:%Y%m%d-%H%M}.csv"


def csv_response(file_name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> CsvResponse:
    """Return ``rows`` as a streamed CSV file with the header ``head``.

    Cells that a spreadsheet would execute as formulas are escaped.
    """
    return _download(file_name, _lines(head, rows))


def complete_csv_response(file_name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> CsvResponse:
    """Return a streamed CSV file whose last line proves that the file was not cut off.

    The first cell of the last line has the number of rows, and the SHA-256 digest of all bytes before this
    line. The other cells are empty. The header is not counted as a row.
    """
    return _download(file_name, _with_end_line(_lines(head, rows), len(head)))


def _download(file_name: str, lines: Iterator[str]) -> CsvResponse:
    response = CsvResponse(_parts(lines), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="{file_name}"'
    return response


def _parts(lines: Iterator[str]) -> Iterator[str]:
    while part := "".join(islice(lines, LINES_PER_PART)):
        yield part


def _lines(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    yield csv_line(head)
    yield from map(csv_line, rows)


def _with_end_line(lines: Iterator[str], columns: int) -> Iterator[str]:
    digest, rows = hashlib.sha256(), -1  # the header is no row
    for line in lines:
        digest.update(line.encode())
        rows += 1
        yield line
    yield csv_line([END_CELL.format(rows=rows, digest=digest.hexdigest()), *[""] * (columns - 1)])
