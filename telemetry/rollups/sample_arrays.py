"""Read the samples and the holds of many units as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
from django.db import connection

from telemetry.core.rollup import SAMPLE_REACH_SECONDS
from telemetry.core.rollup_arrays import HoldArrays, Ints, ReadingArrays
from telemetry.samples.stored import load_samples
from telemetry.sql_values import array_text

_PERCENTAGES = ("utilisation", "sm_active", "tensor_active")
_COUNTS = ("memory_used_mib", "energy_mj", "processes")
# A stored percentage differs from its reading by less than this: single precision has seven digits.
PERCENT_DECIMALS = 4
_HOLDS_SQL = """
SELECT unit_id, id, (extract(epoch FROM lower(period)) * 1000000)::bigint,
    coalesce((extract(epoch FROM upper(period)) * 1000000)::bigint, 9223372036854775807)
FROM scheduler_allocation WHERE unit_id = ANY(%s::bigint[]) AND period && tstzrange(%s, %s)
ORDER BY unit_id, lower(period)
"""


def load_readings(start: datetime, end: datetime, units: Ints) -> ReadingArrays:
    """Return the samples that cover part of ``[start, end)``. ``units`` are sorted ids."""
    reach = timedelta(seconds=SAMPLE_REACH_SECONDS)
    columns = load_samples((*_PERCENTAGES, *_COUNTS), units, start - reach, end + reach)
    for name in _PERCENTAGES:
        columns[name] = np.round(columns[name], PERCENT_DECIMALS)
    return ReadingArrays(**columns)


def load_holds(start: datetime, end: datetime, units: Ints) -> HoldArrays:
    """Return the allocations in ``[start, end)``. ``units`` are sorted ids."""
    with connection.cursor() as cursor:
        cursor.execute(_HOLDS_SQL, [array_text(units.tolist()), start, end])
        rows: Sequence[tuple[int, int, int, int]] = cursor.fetchall()
    unit, allocation, low, high = np.array(rows, np.int64).reshape(-1, 4).T
    return HoldArrays(np.searchsorted(units, unit), allocation, low, high)
