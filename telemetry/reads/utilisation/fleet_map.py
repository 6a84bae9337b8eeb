"""Return the busy share of each host in each hour, as small numbers for a page of 10,000 GPUs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.db import connection

from scheduler.core.model.slots import SLOTS_PER_GPU

UNKNOWN = 255  # in ``busy``: nothing was measured
HOURS = 24
SLOT_MICROS_PER_GPU_MINUTE = SLOTS_PER_GPU * 60_000_000
_Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
_Minutes = np.ndarray[tuple[int, ...], np.dtype[np.uint16]]
# Only two arrays are unpacked, because the view unpacks all measures.
_DAYS_SQL = """
SELECT packed.container, gpu.host_id, slot.number - 1,
    sum(slot.used * size.slots)::float8, sum(slot.covered * size.slots)::float8
FROM telemetry_rolluphours AS packed JOIN scheduler_unit AS unit ON unit.id = packed.unit_id
JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id
CROSS JOIN LATERAL (SELECT upper(unit.slots) - lower(unit.slots) AS slots) AS size
CROSS JOIN LATERAL unnest(packed.utilisation_seconds, packed.covered_seconds)
    WITH ORDINALITY AS slot (used, covered, number)
WHERE packed.container = ANY(%(days)s::timestamptz[]) AND slot.covered > 0 AND slot.used IS NOT NULL
GROUP BY 1, 2, 3
UNION ALL
SELECT date_trunc('day', open.bucket, 'UTC'), open.host_id, extract(hour FROM open.bucket AT TIME ZONE 'UTC'),
    sum(slot.used * size.slots)::float8, sum(slot.covered * size.slots)::float8
FROM telemetry_rollupopen AS open
CROSS JOIN LATERAL unnest(open.unit_ids, open.utilisation_seconds, open.covered_seconds)
    AS slot (unit_id, used, covered)
JOIN scheduler_unit AS unit ON unit.id = slot.unit_id
CROSS JOIN LATERAL (SELECT upper(unit.slots) - lower(unit.slots) AS slots) AS size
WHERE open.resolution = 3600 AND date_trunc('day', open.bucket, 'UTC') = ANY(%(days)s::timestamptz[])
    AND slot.covered > 0 AND slot.used IS NOT NULL
GROUP BY 1, 2, 3
"""


@dataclass(frozen=True)
class HostDay:
    """The use of hosts in the hours of one day (UTC).

    ``busy`` has per cent of the measured time, or UNKNOWN. ``weight`` has the measured GPU-minutes. Both have
    a row for each host of ``hosts``.
    """

    hosts: list[int]
    busy: _Bytes
    weight: _Minutes


def host_days(days: Collection[datetime]) -> dict[datetime, HostDay]:
    """Return the use of all hosts on each day, by its start. Runs one query; none without days."""
    if not days:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_DAYS_SQL, {"days": sorted(days)})
        rows = cursor.fetchall()
    rows_of: dict[datetime, list[tuple[Any, ...]]] = {day: [] for day in days}
    for day, *row in rows:
        rows_of[day].append(tuple(row))
    return {day: _host_day(of_day) for day, of_day in rows_of.items()}


def _host_day(rows: Sequence[tuple[Any, ...]]) -> HostDay:
    """Return the use of one day from (host, hour, used, covered) rows in slot-microseconds."""
    hosts = sorted({row[0] for row in rows})
    index = {host: number for number, host in enumerate(hosts)}
    used, covered = np.zeros((len(hosts), HOURS)), np.zeros((len(hosts), HOURS))
    for host, hour, of_used, of_covered in rows:
        used[index[host], int(hour)] += of_used
        covered[index[host], int(hour)] += of_covered
    known = covered > 0
    share = np.divide(used, covered, out=np.zeros_like(used), where=known)
    busy = np.where(known, np.clip(np.rint(share * 100), 0, 100), UNKNOWN).astype(np.uint8)
    weight = np.where(known, np.maximum(1, np.rint(covered / SLOT_MICROS_PER_GPU_MINUTE)), 0).astype(
        np.uint16
    )
    return HostDay(hosts, busy, weight)


def days_of(start: datetime, end: datetime) -> list[datetime]:
    """Return the starts of the days (UTC) that touch ``[start, end)``."""
    first = start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    count = -(-(end - first) // timedelta(days=1))
    return [first + timedelta(days=number) for number in range(count)]


def joined_days(days: list[HostDay], hosts: list[int]) -> tuple[_Bytes, _Minutes]:
    """Return ``busy`` and ``weight`` of the hosts over all days. A host without rows is UNKNOWN."""
    busy = np.full((len(hosts), HOURS * len(days)), UNKNOWN, dtype=np.uint8)
    weight = np.zeros(busy.shape, dtype=np.uint16)
    row_of = {host: number for number, host in enumerate(hosts)}
    for number, day in enumerate(days):
        pairs = [(row_of[host], source) for source, host in enumerate(day.hosts) if host in row_of]
        if pairs:
            rows, sources = map(list, zip(*pairs, strict=True))
            hours = slice(number * HOURS, (number + 1) * HOURS)
            busy[rows, hours], weight[rows, hours] = day.busy[sources], day.weight[sources]
    return busy, weight


def folded(busy: _Bytes, weight: _Minutes, rows: int, columns: int) -> _Bytes:
    """Return ``busy`` with ``rows`` rows and ``columns`` columns folded into one: their weighted mean."""
    high, wide = -(-busy.shape[0] // rows), -(-busy.shape[1] // columns)
    padding = ((0, high * rows - busy.shape[0]), (0, wide * columns - busy.shape[1]))
    weights = np.pad(weight.astype(np.float64), padding)
    sums = np.pad(busy.astype(np.float64), padding) * weights
    shape = (high, rows, wide, columns)
    total = weights.reshape(shape).sum(axis=(1, 3))
    mean = np.divide(sums.reshape(shape).sum(axis=(1, 3)), total, out=np.zeros((high, wide)), where=total > 0)
    return np.where(total > 0, np.rint(mean), UNKNOWN).astype(np.uint8)
