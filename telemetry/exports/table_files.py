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
from telemetry.exports.parquet.joined_files import joined_files

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

    ``types`` are the types of DuckDB by column, in order. Each part of about PARQUET_ROW_GROUP rows becomes a
    row group and is sent before the next rows are read. Memory and disk hold one part at a time. ``facts`` is
    called after the last row; its result becomes metadata of the file.
    """
    with tempfile.TemporaryDirectory(prefix="gpupool-parquet-") as folder:
        parts = (_parquet_part(part, types, Path(folder)) for part in _row_groups(rows))
        yield from joined_files(parts, facts)


def _row_groups(rows: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the rows in parts of about PARQUET_ROW_GROUP rows. Without rows, yield one empty part."""
    waiting: list[bytes] = []
    count = groups = 0
    for part in rows:
        waiting.append(part)
        count += part.count(b"\n")
        if count >= PARQUET_ROW_GROUP:
            yield waiting
            waiting, count, groups = [], 0, groups + 1
    if waiting or not groups:
        yield waiting


def _parquet_part(rows: Iterable[bytes], types: Mapping[str, str], folder: Path) -> bytes:
    """Return rows of CSV as a Parquet file with one row group."""
    import duckdb  # imported here, because it is large and only these exports need it

    table, target = folder / "rows.csv", folder / "rows.parquet"
    with table.open("wb") as file:
        file.writelines(rows)
    # One thread keeps the order of the rows, so that equal rows give equal bytes.
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": "256MB",
        "temp_directory": str(folder),
    }
    with duckdb.connect(":memory:", config=settings) as database:
        database.execute(
            "COPY (SELECT * FROM read_csv($table, header = false, columns = $types, nullstr = '', "
            "allow_quoted_nulls = false, quote = '\"', escape = '\"', delim = ',', auto_detect = false)) "
            # A part may have a few more rows than PARQUET_ROW_GROUP.
            f"TO '{target}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {4 * PARQUET_ROW_GROUP})",
            {"table": str(table), "types": dict(types)},
        )
    table.unlink()
    return target.read_bytes()


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
