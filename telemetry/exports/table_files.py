"""Write the rows of a query as CSV, and rows of CSV as a Parquet file, in parts.

The end of a file has the number of its rows and a digest: the last line of a CSV file, and the metadata in
the footer of a Parquet file.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from django.db import connection

from telemetry.core.csv_text import END_CELL

CSV_TYPE, PARQUET_TYPE = "text/csv; charset=utf-8", "application/vnd.apache.parquet"
PART_BYTES = 256 * 1024
PARQUET_ROW_GROUP = 100_000
_COPY = "COPY ({query}) TO STDOUT (FORMAT csv)"


def copied_rows(query: str, values: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the rows of a query as CSV without a header, in parts of about ``PART_BYTES``."""
    waiting, size = [], 0
    # Django's cursor that records statements takes no values, so this is psycopg's cursor.
    with connection.cursor() as cursor, cursor.cursor.copy(_COPY.format(query=query), values) as copy:
        for line in copy:
            waiting.append(bytes(line))
            size += len(line)
            if size >= PART_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def parquet_file(
    rows: Iterable[bytes], types: Mapping[str, str], facts: Callable[[], Mapping[str, str]] = dict
) -> Iterator[bytes]:
    """Yield a Parquet file of rows that are given as CSV without a header. Their order is kept.

    ``types`` are the types of DuckDB by column, in order. The rows are written to a temporary file first,
    because the end of a Parquet file describes all of it. ``facts`` is called after the last row; its result
    becomes metadata of the file.
    """
    with tempfile.TemporaryDirectory(prefix="gpupool-parquet-") as folder:
        table, target = Path(folder, "rows.csv"), Path(folder, "rows.parquet")
        with table.open("wb") as file:
            for part in rows:
                file.write(part)
        _convert_to_parquet(table, target, types, Path(folder), facts())
        table.unlink()
        with target.open("rb") as file:
            while part := file.read(PART_BYTES):
                yield part


def _convert_to_parquet(
    table: Path, target: Path, types: Mapping[str, str], folder: Path, facts: Mapping[str, str]
) -> None:
    import duckdb  # imported here, because it is large and only these exports need it

    # One thread keeps the order of the rows, so that equal rows give equal bytes.
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": "256MB",
        "temp_directory": str(folder),
    }
    metadata = ", ".join(f"{name}: '{value}'" for name, value in facts.items())
    kept = f", KV_METADATA {{{metadata}}}" if facts else ""
    with duckdb.connect(":memory:", config=settings) as database:
        database.execute(
            "COPY (SELECT * FROM read_csv($table, header = false, columns = $types, nullstr = '', "
            "allow_quoted_nulls = false, quote = '\"', escape = '\"', delim = ',', auto_detect = false)) "
            f"TO '{target}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {PARQUET_ROW_GROUP}{kept})",
            {"table": str(table), "types": dict(types)},
        )


Columns = dict[str, tuple[str, str]]


def _csv_file(rows: Iterator[bytes], columns: Columns) -> Iterator[bytes]:
    """Yield a header, the rows, and a last line with their number and the digest of the bytes before it."""
    digest, count = hashlib.sha256(), 0
    head = f"{','.join(columns)}\n".encode()
    digest.update(head)
    yield head
    for part in rows:
        digest.update(part)
        count += part.count(b"\n")
        yield part
    yield f"{END_CELL.format(rows=count, digest=digest.hexdigest())}\r\n".encode()


def _parquet_file(rows: Iterator[bytes], columns: Columns) -> Iterator[bytes]:
    """Yield a Parquet file whose metadata has the number and the digest of its rows as CSV."""
    digest, counted = hashlib.sha256(), [0]

    def read() -> Iterator[bytes]:
        for part in rows:
            digest.update(part)
            counted[0] += part.count(b"\n")
            yield part

    def facts() -> dict[str, str]:
        return {"rows": str(counted[0]), "sha256": digest.hexdigest()}

    yield from parquet_file(read(), {name: kind for name, (_, kind) in columns.items()}, facts)


TABLE_FILES: dict[str, tuple[str, Callable[[Iterator[bytes], Columns], Iterator[bytes]]]] = {
    "csv": (CSV_TYPE, _csv_file),
    "parquet": (PARQUET_TYPE, _parquet_file),
}
