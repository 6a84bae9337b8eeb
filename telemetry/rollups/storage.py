"""Store rollups, and pack them into arrays once the hour of a minute or the day of an hour is over.

A new rollup is written to ``telemetry_rollupopen``: one row per bucket and host, with arrays over its units.
When the container of the bucket is over (the hour of minutes, the day of hours, the day itself), the open
rows are deleted and their values are written as one row per unit and allocation, with an array of the
container's buckets per measure. Seconds and per cent are stored in millionths, as integers: their sums are
exact. The view ``telemetry_rollup`` (model ``Rollup``) has one row per bucket, unit and allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connection

from telemetry.core.rollup import UsageSums
from telemetry.models import Rollup
from telemetry.models.rollups import CONTAINER_SECONDS
from telemetry.rollups.packing_locks import lock_packing
from telemetry.sql_values import array_text, time_array_text

MICRO_MEASURES = (
    "held_seconds",
    "covered_seconds",
    "utilisation_seconds",
    "utilisation_max",
    "busy_seconds",
    "inefficient_seconds",
    "sm_unmeasured_seconds",
    "idle_seconds",
    "empty_seconds",
    "sm_active_seconds",
    "tensor_active_seconds",
    "utilisation_unknown_seconds",
    "sm_unknown_seconds",
)
COUNT_MEASURES = ("samples", "memory_used_max_mib", "energy_mj", "energy_faults")
ROLLUP_MEASURES = (*MICRO_MEASURES, *COUNT_MEASURES)
_NAMES = ", ".join(ROLLUP_MEASURES)
_KEYS = ("bucket", "host_id", "unit_id", "allocation_id", "simulated")
# A unit that is written again keeps no value of before. The other units of the host keep their values.
_WRITE_SQL = f"""
WITH written AS (
    SELECT * FROM unnest(%s::timestamptz[], %s::bigint[], %s::bigint[], %s::bigint[], %s::boolean[],
        {", ".join("%s::bigint[]" for _ in ROLLUP_MEASURES)}) AS written ({", ".join(_KEYS)}, {_NAMES})
), item AS (
    SELECT * FROM written
    UNION ALL
    SELECT open.bucket, open.host_id, value.*
    FROM telemetry_rollupopen AS open
    CROSS JOIN LATERAL unnest(open.unit_ids, open.allocation_ids, open.simulated,
        {", ".join(f"open.{name}" for name in ROLLUP_MEASURES)})
        AS value (unit_id, allocation_id, simulated, {_NAMES})
    WHERE open.resolution = %s AND (open.bucket, open.host_id) IN (SELECT bucket, host_id FROM written)
        AND (open.bucket, value.unit_id) NOT IN (SELECT bucket, unit_id FROM written)
)
INSERT INTO telemetry_rollupopen AS open
    (resolution, bucket, host_id, unit_ids, allocation_ids, simulated, {_NAMES})
SELECT %s, bucket, host_id, array_agg(unit_id), array_agg(allocation_id), array_agg(simulated),
    {", ".join(f"CASE WHEN count({name}) > 0 THEN array_agg({name}) END" for name in ROLLUP_MEASURES)}
FROM item GROUP BY bucket, host_id
ON CONFLICT (resolution, bucket, host_id) DO UPDATE SET unit_ids = excluded.unit_ids,
    allocation_ids = excluded.allocation_ids, simulated = excluded.simulated,
    {", ".join(f"{name} = excluded.{name}" for name in ROLLUP_MEASURES)}
"""
_ENDED_SQL = """
SELECT DISTINCT host_id, date_bin(make_interval(secs => %s), bucket, 'epoch')
FROM telemetry_rollupopen WHERE resolution = %s AND bucket < %s
"""
# The last rolled-up minute. The last packed hour tells it only if no open minute is newer.
LAST_MINUTE_SQL = """
SELECT coalesce(
    (SELECT max(bucket) FROM telemetry_rollupopen WHERE resolution = 60),
    (SELECT max(bucket) FROM telemetry_rollup
     WHERE resolution = 60 AND container = (SELECT max(container) FROM telemetry_rollupminutes)))
"""


@dataclass(frozen=True, slots=True)
class StoredUse:
    """The usage of one unit by one allocation in one bucket. If ``use`` is None, the unit has no rollups."""

    bucket: datetime
    host: int
    unit: int
    allocation: int | None = None
    use: UsageSums | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class OpenRows:
    """Rollups as columns, as they are stored: seconds and per cent in millionths. A row without held time
    removes the rollups of its unit.
    """

    resolution: int
    buckets: Sequence[datetime]
    hosts: Sequence[int]
    units: Sequence[int]
    allocations: Sequence[int | None]
    simulated: Sequence[bool]
    measures: Mapping[str, Sequence[int | None]]


def write_rollups(resolution: int, uses: Sequence[StoredUse]) -> None:
    """Replace the rollups of the units and buckets in ``uses``.

    All rows of a unit and bucket must be given together. If the container of a bucket is already packed,
    call ``pack_rollups`` in the same transaction.
    """
    write_open_rows(
        OpenRows(
            resolution,
            [use.bucket for use in uses],
            [use.host for use in uses],
            [use.unit for use in uses],
            [use.allocation for use in uses],
            [use.simulated for use in uses],
            {name: [_stored(use.use, name) for use in uses] for name in ROLLUP_MEASURES},
        )
    )


def write_open_rows(rows: OpenRows) -> None:
    """Replace the rollups of the units and buckets in ``rows``, as ``write_rollups`` does."""
    if not rows.units:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            _WRITE_SQL,
            [
                time_array_text(rows.buckets),
                *map(array_text, (rows.hosts, rows.units, rows.allocations, rows.simulated)),
                *(array_text(rows.measures[name]) for name in ROLLUP_MEASURES),
                int(rows.resolution),
                int(rows.resolution),
            ],
        )


def delete_open_rows(resolution: int, start: datetime, end: datetime, hosts: Iterable[int]) -> None:
    """Delete the open rows of these hosts with buckets in ``[start, end)``."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM telemetry_rollupopen"
            " WHERE resolution = %s AND bucket >= %s AND bucket < %s AND host_id = ANY(%s::bigint[])",
            [int(resolution), start, end, array_text(hosts)],
        )


def _stored(use: UsageSums | None, name: str) -> int | None:
    value = None if use is None else getattr(use, name)
    return round(value * 1_000_000) if value is not None and name in MICRO_MEASURES else value


def is_ended(resolution: int, bucket: datetime, until: datetime) -> bool:
    """Return True if the container of the bucket ended at or before ``until``."""
    return bucket < _container_start(resolution, until)


def pack_rollups(
    resolution: int, until: datetime, hosts: Iterable[int] | None = None
) -> list[tuple[int, datetime]]:
    """Pack the open rows of containers that ended at or before ``until``. Return (host id, container start).

    Call this in a transaction. ``hosts`` restricts the packing to these hosts.
    """
    ended = _container_start(resolution, until)
    chosen = None if hosts is None else sorted(set(hosts))
    condition = "" if chosen is None else " AND host_id = ANY(%s)"
    query: list[Any] = [CONTAINER_SECONDS[resolution], int(resolution), ended]
    if chosen is not None:
        query.append(chosen)
    with connection.cursor() as cursor:
        cursor.execute(_ENDED_SQL + condition, query)
        if cursor.fetchone() is None:
            return []
        lock_packing(resolution)
        cursor.execute(_ENDED_SQL + condition, query)
        packed = sorted(cursor.fetchall())
        arguments: list[Any] = [int(resolution), until, chosen]
        cursor.execute("SELECT telemetry_pack_rollups(%s, %s, %s::bigint[])", arguments)
    return packed


def _container_start(resolution: int, moment: datetime) -> datetime:
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % CONTAINER_SECONDS[Rollup.Resolution(resolution)], UTC)


def rollup_condition(resolution: int, start: datetime, end: datetime) -> tuple[str, list[Any]]:
    """Return an SQL condition on ``telemetry_rollup`` and its parameters: the buckets in ``[start, end)``."""
    first = _container_start(resolution, start)
    return (
        "(resolution = %s AND bucket >= %s AND bucket < %s AND container >= %s AND container < %s)",
        [int(resolution), start, end, first, end],
    )
