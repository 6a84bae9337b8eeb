"""Write samples with PostgreSQL's binary COPY."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import numpy as np
from django.db import connection
from psycopg.types.range import TimestamptzRange

from scheduler.models import Allocation
from telemetry.ingest.stream_format import (
    INT8,
    READING_KINDS,
    SPARSE_READING_KINDS,
    DecodedBatch,
    Floats,
    Ints,
)

READING_COLUMN_TYPES = tuple(READING_KINDS.values())
SPARSE_COLUMN_TYPES = (*SPARSE_READING_KINDS.values(), INT8)
SAMPLE_COLUMNS = ("unit_id", "ts", "allocation_id", *READING_KINDS)
SPARSE_COLUMNS = (*SPARSE_READING_KINDS, "dcgm_readings")
_COPY_SQL = "COPY telemetry_sample ({}) FROM STDIN (FORMAT BINARY)"
COPY_SAMPLES_SQL = _COPY_SQL.format(", ".join(SAMPLE_COLUMNS))
_COPY_SPARSE_SQL = _COPY_SQL.format(", ".join((*SAMPLE_COLUMNS, *SPARSE_COLUMNS)))
_POSTGRES_EPOCH_SECONDS = 946_684_800  # 2000-01-01 in seconds since 1970
_BINARY_FORMATS = {"int4": (">i4", 4), "int8": (">i8", 8), "float4": (">f4", 4)}
_COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
# The number of bits for a time in microseconds: 2**44 microseconds are 203 days. A sortable integer has the
# position of a unit in its high bits and a time in these low bits.
_TIMESTAMP_BITS = 44


def copy_samples(batches: Sequence[DecodedBatch]) -> None:
    """Insert the valid rows of the batches. Each row gets the allocation that held the unit at its time.

    Most rows have none of the sparse readings. They are copied without these columns, because each column
    takes time even if it is NULL.
    """
    if not any(len(batch.units) for batch in batches):
        return
    units = np.concatenate([batch.units for batch in batches])
    values = np.concatenate([batch.values for batch in batches])
    allocations = allocations_at(units, values[:, 0])
    sparse = _sparse_columns(batches)
    if sparse is None:
        _copy(units, allocations, values, COPY_SAMPLES_SQL, READING_COLUMN_TYPES)
        return
    full = ~np.isnan(sparse).all(axis=1)
    _copy(units[~full], allocations[~full], values[~full], COPY_SAMPLES_SQL, READING_COLUMN_TYPES)
    wide = np.hstack([values[full], sparse[full]])
    types = (*READING_COLUMN_TYPES, *SPARSE_COLUMN_TYPES)
    _copy(units[full], allocations[full], wide, _COPY_SPARSE_SQL, types)


def _copy(units: Ints, allocations: Ints, values: Floats, sql: str, reading_types: Sequence[str]) -> None:
    if not len(units):
        return
    with connection.cursor() as cursor, cursor.copy(sql) as copy:
        copy.write(_COPY_SIGNATURE)
        for chunk in _binary_rows(units, allocations, values, reading_types):
            copy.write(chunk)
        copy.write(b"\xff\xff")


def _sparse_columns(batches: Sequence[DecodedBatch]) -> Floats | None:
    """Return the SPARSE_COLUMNS of all rows; None if no row has a value."""
    if all(batch.sparse is None for batch in batches):
        return None
    parts = []
    for batch in batches:
        part = np.full((len(batch.units), len(SPARSE_COLUMNS)), np.nan)
        if batch.sparse is not None:
            part[:, :-1] = batch.sparse
        if batch.dcgm_bits is not None:
            part[:, -1] = batch.dcgm_bits
        parts.append(part)
    return np.concatenate(parts)


def allocations_at(units: Ints, moments: Floats) -> Ints:
    """Return, for each index i, the id of the allocation that held ``units[i]`` at ``moments[i]``.

    The id is 0 if no allocation held the unit. ``moments`` are in seconds since the epoch. Runs one query.
    """
    base = math.floor(float(moments.min()))
    low, high = (
        datetime.fromtimestamp(base, UTC),
        datetime.fromtimestamp(math.ceil(float(moments.max())), UTC),
    )
    distinct, places = np.unique(units, return_inverse=True)
    place_of = {unit: place for place, unit in enumerate(distinct.tolist())}
    rows = Allocation.objects.filter(
        unit__in=list(place_of), period__overlap=TimestamptzRange(low, high, "[]")
    )
    last = (1 << _TIMESTAMP_BITS) - 1
    holds = sorted(
        (
            place_of[unit],
            min(last, max(0, _microseconds_since(period.lower, base))),
            last if period.upper is None else _microseconds_since(period.upper, base),
            pk,
        )
        for unit, pk, period in rows.values_list("unit_id", "pk", "period")
    )
    found = np.zeros(len(units), np.int64)
    if not holds:
        return found
    table = np.array(holds, dtype=np.int64)
    after = np.round((moments - base) * 1e6).astype(np.int64)
    starts, wanted = (table[:, 0] << _TIMESTAMP_BITS) + table[:, 1], (places << _TIMESTAMP_BITS) + after
    before = np.searchsorted(starts, wanted, side="right") - 1
    hold = table[np.maximum(before, 0)]
    held = (before >= 0) & (hold[:, 0] == places) & (after < hold[:, 2])
    found[held] = hold[held, 3]
    return found


def _microseconds_since(moment: datetime, base: int) -> int:
    return round((moment.timestamp() - base) * 1_000_000)


def _binary_rows(
    units: Ints, allocations: Ints, values: Floats, reading_types: Sequence[str]
) -> Iterable[bytes]:
    """Yield rows in PostgreSQL's binary COPY format. ``reading_types`` are the types of ``values`` after ts.

    Rows with the same NULL columns have the same layout and are encoded together.
    """
    micros = np.round((values[:, 0] - _POSTGRES_EPOCH_SECONDS) * 1e6).astype(np.int64)
    missing = np.column_stack([allocations == 0, np.isnan(values[:, 1:])])
    shapes, shape_of = np.unique(missing, axis=0, return_inverse=True)
    for number, shape in enumerate(shapes):
        rows = np.flatnonzero(shape_of.reshape(-1) == number)
        kinds = ("int8", "int8", "int8", *reading_types)
        columns = [units[rows], micros[rows], allocations[rows], *values[rows, 1:].T]
        absent = [False, False, *shape.tolist()]
        layout: list[tuple[str, str]] = [("fields", ">i2")]
        for place, (kind, is_absent) in enumerate(zip(kinds, absent, strict=True)):
            layout.append((f"length{place}", ">i4"))
            if not is_absent:
                layout.append((f"value{place}", _BINARY_FORMATS[kind][0]))
        block = np.zeros(len(rows), dtype=layout)
        block["fields"] = len(kinds)
        for place, (kind, is_absent, column) in enumerate(zip(kinds, absent, columns, strict=True)):
            block[f"length{place}"] = -1 if is_absent else _BINARY_FORMATS[kind][1]
            if not is_absent:
                block[f"value{place}"] = column
        yield block.tobytes()
