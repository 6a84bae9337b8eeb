"""Read the samples and the holds of many units as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
from django.db import connection

from telemetry.core.rollup import SAMPLE_REACH_SECONDS
from telemetry.core.rollup_arrays import UNKNOWN, HoldArrays, Ints, ReadingArrays
from telemetry.rollups.binary_columns import read_columns
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
SELECT {", ".join(f"array_agg({expression})" for expression, _ in _COLUMNS.values())}
FROM telemetry_sample WHERE unit_id = ANY(%s::bigint[]) AND ts >= %s AND ts < %s
"""
_HOLDS_SQL = """
SELECT unit_id, id, (extract(epoch FROM lower(period)) * 1000000)::bigint,
    coalesce((extract(epoch FROM upper(period)) * 1000000)::bigint, 9223372036854775807)
FROM scheduler_allocation WHERE unit_id = ANY(%s::bigint[]) AND period && tstzrange(%s, %s)
ORDER BY unit_id, lower(period)
"""
_POSTGRES_EPOCH_MICROS = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970


def load_readings(start: datetime, end: datetime, units: Ints) -> ReadingArrays:
    """Return the samples that cover part of ``[start, end)``. ``units`` are sorted ids."""
    reach = timedelta(seconds=SAMPLE_REACH_SECONDS)
    values = [array_text(units.tolist()), start - reach, end + reach]
    found = read_columns(_SAMPLES_SQL, values, [kind for _, kind in _COLUMNS.values()])
    columns = dict(zip(_COLUMNS, found, strict=True))
    columns["unit"] = np.searchsorted(units, columns["unit"])
    columns["ts"] = columns["ts"] + _POSTGRES_EPOCH_MICROS
    order = np.lexsort((columns["ts"], columns["unit"]))
    return ReadingArrays(**{name: values[order] for name, values in columns.items()})


def load_holds(start: datetime, end: datetime, units: Ints) -> HoldArrays:
    """Return the allocations in ``[start, end)``. ``units`` are sorted ids."""
    with connection.cursor() as cursor:
        cursor.execute(_HOLDS_SQL, [array_text(units.tolist()), start, end])
        rows: Sequence[tuple[int, int, int, int]] = cursor.fetchall()
    unit, allocation, low, high = np.array(rows, np.int64).reshape(-1, 4).T
    return HoldArrays(np.searchsorted(units, unit), allocation, low, high)
