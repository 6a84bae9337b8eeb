"""Stream rows as a CSV download."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.http import StreamingHttpResponse

from telemetry.money.statement_export import csv_safe_text

MAX_CSV_ROWS = 50_000


def csv_response(
    name: str, head: Sequence[str], rows: Iterable[Sequence[Any]], now: datetime
) -> StreamingHttpResponse:
    """Return ``rows`` as a streamed CSV file with the header ``head``.

    Cells that a spreadsheet would execute as formulas are escaped.
    """
    writer = csv.writer(_PassThroughFile())

    def lines() -> Iterator[str]:
        yield writer.writerow(head)
        for row in rows:
            yield writer.writerow([_csv_cell(value) for value in row])

    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="{name}-{now:%Y%m%d-%H%M}.csv"'
    return response


def _csv_cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return csv_safe_text(value)
    return "" if value is None else value


class _PassThroughFile:
    """A file object whose ``write`` returns the text, so that each CSV line can be streamed."""

    def write(self, text: str) -> str:
        return text
