"""Read the samples and the holds of many units as arrays.

The database gathers each column of the samples into one array, and numpy reads its binary form. A row per
sample would take more time in the driver than in the database.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import numpy as np
from django.db import connection

from telemetry.core.rollup import SAMPLE_REACH_SECONDS
from telemetry.core.rollup_arrays import UNKNOWN, HoldArrays, Ints, ReadingArrays
from telemetry.sql_values import array_text

# column: (its expression, the type of an element)
_COLUMNS = {
    "unit": ("unit_id", ">i8"),
    "ts": ("ts", ">i8"),
    "utilisation": ("coalesce(utilisation, 'NaN')", ">f8"),
    "sm_active": ("coalesce(sm_active, 'NaN')", ">f8"),
    "tensor_active": ("coalesce(tensor_active, 'NaN')", ">f8"),
    "memory_used_mib": (f"coalesce(memory_used_mib, {UNKNOWN})", ">i4"),
    "energy_mj": (f"coalesce(energy_mj, {UNKNOWN})", ">i8"),
    "processes": (f"coalesce(processes, {UNKNOWN})", ">i4"),
}
_SAMPLES_SQL = f"""
COPY (SELECT {", ".join(f"array_agg({expression})" for expression, _ in _COLUMNS.values())}
FROM telemetry_sample WHERE unit_id = ANY(%s::bigint[]) AND ts >= %s AND ts < %s) TO STDOUT (FORMAT BINARY)
"""
_HOLDS_SQL = """
SELECT unit_id, id, (extract(epoch FROM lower(period)) * 1000000)::bigint,
    coalesce((extract(epoch FROM upper(period)) * 1000000)::bigint, 9223372036854775807)
FROM scheduler_allocation WHERE unit_id = ANY(%s::bigint[]) AND period && tstzrange(%s, %s)
ORDER BY unit_id, lower(period)
"""
_POSTGRES_EPOCH_MICROS = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970
_SIGNATURE_BYTES = 19
_ARRAY_HEADER_BYTES = 20


def load_readings(start: datetime, end: datetime, units: Ints) -> ReadingArrays:
    """Return the samples that cover part of ``[start, end)``. ``units`` are sorted ids."""
    reach = timedelta(seconds=SAMPLE_REACH_SECONDS)
    values = [array_text(units.tolist()), start - reach, end + reach]
    with connection.cursor() as cursor, cursor.copy(_SAMPLES_SQL, values) as copy:
        answer = b"".join(copy)
    columns = dict(zip(_COLUMNS, _arrays(answer), strict=True))
    columns["unit"] = np.searchsorted(units, columns["unit"])
    columns["ts"] = columns["ts"] + _POSTGRES_EPOCH_MICROS
    order = np.lexsort((columns["ts"], columns["unit"]))
    return ReadingArrays(**{name: values[order] for name, values in columns.items()})


def _arrays(answer: bytes) -> Iterator[np.ndarray]:
    """Yield the columns of the one row of a binary COPY. A column is NULL if there are no samples."""
    at = _SIGNATURE_BYTES + 2
    for _, kind in _COLUMNS.values():
        (length,) = struct.unpack_from(">i", answer, at)
        element = np.dtype([("length", ">i4"), ("value", kind)])
        count = max(0, length - _ARRAY_HEADER_BYTES) // element.itemsize
        values = (
            np.frombuffer(answer, element, count, at + 4 + _ARRAY_HEADER_BYTES)
            if count
            else np.empty(0, element)
        )
        yield values["value"].astype(np.float64 if kind == ">f8" else np.int64)
        at += 4 + max(0, length)


def load_holds(start: datetime, end: datetime, units: Ints) -> HoldArrays:
    """Return the allocations in ``[start, end)``. ``units`` are sorted ids."""
    with connection.cursor() as cursor:
        cursor.execute(_HOLDS_SQL, [array_text(units.tolist()), start, end])
        rows: Sequence[tuple[int, int, int, int]] = cursor.fetchall()
    unit, allocation, low, high = np.array(rows, np.int64).reshape(-1, 4).T
    return HoldArrays(np.searchsorted(units, unit), allocation, low, high)
