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
    FLOAT8,
    PERCENT,
    READING_KINDS,
    DecodedBatch,
    Floats,
    Ints,
)

READING_COLUMN_TYPES = tuple(FLOAT8 if kind == PERCENT else kind for kind in READING_KINDS.values())
SAMPLE_COLUMNS = ("unit_id", "ts", "allocation_id", *READING_KINDS)
COPY_SAMPLES_SQL = f"COPY telemetry_sample ({', '.join(SAMPLE_COLUMNS)}) FROM STDIN (FORMAT BINARY)"
_POSTGRES_EPOCH_SECONDS = 946_684_800  # 2000-01-01 in seconds since 1970
_BINARY_FORMATS = {"int4": (">i4", 4), "int8": (">i8", 8), "float8": (">f8", 8)}
_COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
# The number of bits for a time in microseconds: 2**44 microseconds are 203 days. A sortable integer has the
# position of a unit in its high bits and a time in these low bits.
_TIMESTAMP_BITS = 44


def copy_samples(batches: Sequence[DecodedBatch]) -> None:
    """Insert the valid rows of the batches. Each row gets the allocation that held the unit at its time."""
    units = np.concatenate([batch.units for batch in batches])
    values = np.concatenate([batch.values for batch in batches])
    if not len(units):
        return
    allocations = allocations_at(units, values[:, 0])
    with connection.cursor() as cursor, cursor.copy(COPY_SAMPLES_SQL) as copy:
        copy.write(_COPY_SIGNATURE)
        for chunk in _binary_rows(units, allocations, values):
            copy.write(chunk)
        copy.write(b"\xff\xff")


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


def _binary_rows(units: Ints, allocations: Ints, values: Floats) -> Iterable[bytes]:
    """Yield rows in PostgreSQL's binary COPY format.

    Rows with the same NULL columns have the same layout and are encoded together.
    """
    micros = np.round((values[:, 0] - _POSTGRES_EPOCH_SECONDS) * 1e6).astype(np.int64)
    missing = np.column_stack([allocations == 0, np.isnan(values[:, 1:])])
    shapes, shape_of = np.unique(missing, axis=0, return_inverse=True)
    for number, shape in enumerate(shapes):
        rows = np.flatnonzero(shape_of.reshape(-1) == number)
        kinds = ("int8", "int8", "int8", *READING_COLUMN_TYPES)
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
