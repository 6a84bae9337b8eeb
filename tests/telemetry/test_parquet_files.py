"""Test that Parquet files are sent row group by row group, and are one valid file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from telemetry.exports import table_files
from telemetry.exports.parquet import compact_protocol as compact
from telemetry.exports.table_files import parquet_file

TYPES = {"number": "BIGINT", "name": "VARCHAR", "at": "TIMESTAMP", "share": "DOUBLE"}
ROWS = 2_500


def lines(count: int) -> list[bytes]:
    return [
        f"{number},{'' if number % 7 == 0 else f'name {number % 50}'},2026-03-02T{number % 24:02}:00:00,"
        f"{number / 8}\n".encode()
        for number in range(count)
    ]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a row group have 1,000 rows."""
    monkeypatch.setattr(table_files, "PARQUET_ROW_GROUP", 1_000)


def stored(tmp_path: Path, parts: Iterator[bytes]) -> str:
    path = tmp_path / "file.parquet"
    path.write_bytes(b"".join(parts))
    return str(path)


def test_a_file_has_all_rows_in_order_in_several_row_groups_and_its_metadata(tmp_path: Path) -> None:
    rows = lines(ROWS)
    path = stored(tmp_path, parquet_file(rows, TYPES, lambda: {"rows": str(len(rows)), "source": "x" * 300}))
    found = duckdb.read_parquet(path).fetchall()
    assert [row[0] for row in found] == list(range(ROWS))
    assert [row[1] for row in found] == [None if n % 7 == 0 else f"name {n % 50}" for n in range(ROWS)]
    assert [row[3] for row in found] == [n / 8 for n in range(ROWS)]
    groups = duckdb.sql(
        "SELECT row_group_id, min(row_group_num_rows), min(stats_min_value::BIGINT),"
        " max(stats_max_value::BIGINT)"
        f" FROM parquet_metadata('{path}') WHERE path_in_schema = 'number' GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert groups == [(0, 1_000, 0, 999), (1, 1_000, 1_000, 1_999), (2, 500, 2_000, 2_499)]
    # Single row groups are read by their place and their Bloom filters.
    named = sum(n % 50 == 3 and n % 7 != 0 for n in range(ROWS))
    assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE number = 1500").fetchall() == [(1,)]
    assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE name = 'name 3'").fetchall() == [(named,)]
    kept = duckdb.sql(f"SELECT key, value FROM parquet_kv_metadata('{path}')").fetchall()
    assert {bytes(key): bytes(value) for key, value in kept} == {b"rows": b"2500", b"source": b"x" * 300}
    totals = duckdb.sql(f"SELECT num_rows FROM parquet_file_metadata('{path}')").fetchall()
    assert totals == [(ROWS,)]


def test_a_row_group_is_sent_before_the_rows_after_it_are_read() -> None:
    read = []

    def rows() -> Iterator[bytes]:
        for number, line in enumerate(lines(ROWS)):
            read.append(number)
            yield line

    parts = parquet_file(rows(), TYPES)
    assert next(parts) == b"PAR1" and not read
    assert len(next(parts)) > 1_000 and len(read) == 1_000
    next(parts)
    assert len(read) == 2_000


def test_a_file_without_rows_is_valid(tmp_path: Path) -> None:
    path = stored(tmp_path, parquet_file([], TYPES, lambda: {"rows": "0"}))
    table = duckdb.read_parquet(path)
    assert (table.columns, table.fetchall()) == (list(TYPES), [])


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    one, other = (b"".join(parquet_file(lines(ROWS), TYPES)) for _ in range(2))
    assert one == other


def random_value(rng: random.Random, kind: int, depth: int) -> Any:
    if kind in (compact.TRUE, compact.FALSE):
        return kind == compact.TRUE
    if kind == compact.I8:
        return rng.randrange(256)
    if kind == compact.DOUBLE:
        return rng.randbytes(8)
    if kind == compact.BINARY:
        return rng.randbytes(rng.choice([0, 3, 200]))
    if kind == compact.LIST:
        of = rng.choice([compact.I64, compact.BINARY, compact.TRUE, *([compact.STRUCT] if depth else [])])
        values = [random_value(rng, of, depth - 1) for _ in range(rng.choice([0, 2, 14, 15, 40]))]
        return of, [1 for _ in values] if of == compact.TRUE else values
    if kind == compact.STRUCT:
        return random_struct(rng, depth - 1)
    return rng.choice([0, 1, -1, 127, -128, 2**31, -(2**40), 2**62])


def random_struct(rng: random.Random, depth: int) -> compact.Struct:
    kinds = [
        compact.TRUE,
        compact.FALSE,
        compact.I8,
        compact.I16,
        compact.I64,
        compact.DOUBLE,
        compact.BINARY,
    ]
    kinds += [compact.LIST, compact.STRUCT] if depth > 0 else []
    found = {}
    for number in sorted(rng.sample(range(1, 60), rng.randrange(6))):
        kind = rng.choice(kinds)
        found[number] = (kind, random_value(rng, kind, depth))
    return found


def test_a_struct_that_is_written_is_read_again() -> None:
    rng = random.Random(4)
    for _ in range(300):
        struct = random_struct(rng, 3)
        assert compact.read_struct(compact.write_struct(struct)) == struct


def test_a_type_that_parquet_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="type of a field is 11; allowed: 1 to 10 and 12"):
        compact.read_struct(bytes([0x1B, 0x00]))
