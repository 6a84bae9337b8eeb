"""Clear impossible values that earlier versions stored in samples and rollups.

The values become NULL. Minutes whose values changed are marked as due, so that they are rolled up again from
the samples that still exist, and their hours and days after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from django.db import connection, transaction
from django.db.models import Max, Min

from scheduler.models import Host
from telemetry.core.reading_bounds import ENERGY_FACTOR, UnitLimits, reading_bounds
from telemetry.core.rollup import UsageSums
from telemetry.models import ReadingFault, Rollup, Sample
from telemetry.readings.faults import FaultCount, count_faults
from telemetry.readings.unit_limits import load_limits
from telemetry.rollups.due_marks import mark_minutes_due
from telemetry.rollups.packing_locks import lock_packing
from telemetry.rollups.storage import (
    ROLLUP_MEASURES,
    StoredUse,
    pack_rollups,
    rollup_condition,
    write_rollups,
)
from telemetry.sql_values import array_text

HOSTS_PER_BATCH = 100
DAY = timedelta(days=1)
READINGS = tuple(reading_bounds(UnitLimits()))
# One row per unit with the bounds of its readings, in the order of READINGS.
_BOUNDS_SQL = "unnest({arrays}) AS bound (unit_id, {names})".format(
    arrays=", ".join(["%s::bigint[]", *("%s::float8[]" for _ in READINGS)]), names=", ".join(READINGS)
)
_TEST_SQL = "(sample.{0} < 0 OR sample.{0} > bound.{0} OR sample.{0} = 'NaN'::float8)"
_CLEARED_SQL = "{0} = CASE WHEN {1} THEN NULL ELSE sample.{0} END"
_IMPOSSIBLE_SQL = {name: _TEST_SQL.format(name) for name in READINGS}
_COUNT_SQL = (
    "SELECT "
    + ", ".join(
        f"count(*) FILTER (WHERE {test}), max(sample.ts) FILTER (WHERE {test})"
        for test in _IMPOSSIBLE_SQL.values()
    )
    + f" FROM telemetry_sample AS sample JOIN {_BOUNDS_SQL} ON bound.unit_id = sample.unit_id"
    " WHERE sample.ts >= %s AND sample.ts < %s"
)
_CLEAR_SAMPLES_SQL = (
    "UPDATE telemetry_sample AS sample SET "
    + ", ".join(_CLEARED_SQL.format(name, test) for name, test in _IMPOSSIBLE_SQL.items())
    + f" FROM {_BOUNDS_SQL}"
    + " WHERE bound.unit_id = sample.unit_id AND sample.ts >= %s AND sample.ts < %s AND ("
    + " OR ".join(_IMPOSSIBLE_SQL.values())
    + ") RETURNING sample.unit_id, extract(epoch FROM sample.ts)::bigint"
)
# Energy of less than a second is not judged: rounding could exceed its bound.
_IMPOSSIBLE_ROLLUPS_SQL = """
SELECT rollup.unit_id, rollup.bucket,
    rollup.energy_mj IS NULL
        OR rollup.energy_mj BETWEEN 0 AND bound.power_w * greatest(1, rollup.covered_seconds),
    rollup.memory_used_max_mib IS NULL OR rollup.memory_used_max_mib BETWEEN 0 AND bound.memory_mib,
    rollup.utilisation_max IS NULL OR rollup.utilisation_max BETWEEN 0 AND 100,
    rollup.host_id, rollup.allocation_id, rollup.simulated, {measures}
FROM unnest(%s::bigint[], %s::float8[], %s::float8[]) AS bound (unit_id, power_w, memory_mib)
JOIN telemetry_rollup AS rollup ON rollup.unit_id = bound.unit_id
WHERE rollup.unit_id = ANY(%s::bigint[]) AND {{buckets}} ORDER BY rollup.unit_id, rollup.bucket
""".format(measures=", ".join(f"rollup.{name}" for name in ROLLUP_MEASURES))
_JUDGED = ("energy_mj", "memory_used_max_mib", "utilisation_max")


@dataclass
class ClearedValues:
    """The numbers of samples and rollups in which values were cleared."""

    samples: int = 0
    rollups: int = 0


def clear_impossible_values(now: datetime) -> Iterator[tuple[datetime, ClearedValues]]:
    """Clear the impossible values of each day. Yield the day (UTC) and its result, oldest first.

    One transaction covers one day of at most HOSTS_PER_BATCH hosts. A repeated run changes nothing.
    """
    hosts = list(Host.with_removed.order_by("pk").values_list("pk", flat=True))
    batches = [hosts[at : at + HOSTS_PER_BATCH] for at in range(0, len(hosts), HOSTS_PER_BATCH)]
    for day in _days_with_values():
        done = ClearedValues()
        for batch in batches:
            with transaction.atomic():
                _clear_day(batch, day, now, done)
        yield day, done


def _days_with_values() -> list[datetime]:
    spans = [
        Sample.objects.aggregate(first=Min("ts"), last=Max("ts")),
        Rollup.objects.aggregate(first=Min("bucket"), last=Max("bucket")),
    ]
    known = [span for span in spans if span["first"] is not None]
    if not known:
        return []
    first = (
        min(span["first"] for span in known)
        .astimezone(UTC)
        .replace(hour=0, minute=0, second=0, microsecond=0)
    )
    last = max(span["last"] for span in known)
    return [first + number * DAY for number in range((last - first) // DAY + 1)]


def _clear_day(hosts: Sequence[int], day: datetime, now: datetime, done: ClearedValues) -> None:
    due: set[tuple[int, int]] = set()
    for host in hosts:
        limits = load_limits([host])
        if limits:
            samples = _clear_samples(host, limits, day)
            rollups = _clear_rollups(limits, day, now)
            done.samples += len(samples)
            done.rollups += sum(map(len, rollups.values()))
            due |= {(host, second // 60 * 60) for _, second in samples + rollups[Rollup.Resolution.MINUTE]}
    mark_minutes_due(due, now)


def _clear_samples(host: int, limits: dict[int, UnitLimits], day: datetime) -> list[tuple[int, int]]:
    """Clear the samples of one host on one day. Return (unit id, second since the epoch) of each."""
    bounds = {unit: reading_bounds(each) for unit, each in limits.items()}
    arrays = [array_text(bounds), *(array_text(each[name] for each in bounds.values()) for name in READINGS)]
    with connection.cursor() as cursor:
        cursor.execute(_COUNT_SQL, [*arrays, day, day + DAY])
        counts = cursor.fetchone()
        found = [
            FaultCount(host, name, ReadingFault.Kind.OUT_OF_BOUNDS, counts[2 * place], counts[2 * place + 1])
            for place, name in enumerate(READINGS)
            if counts[2 * place]
        ]
        if not found:
            return []
        count_faults(found)
        cursor.execute(_CLEAR_SAMPLES_SQL, [*arrays, day, day + DAY])
        return list(cursor.fetchall())


def _clear_rollups(
    limits: dict[int, UnitLimits], day: datetime, now: datetime
) -> dict[int, list[tuple[int, int]]]:
    """Clear the rollups of one host on one day. Return (unit id, bucket start) of each, by resolution."""
    arrays = [
        array_text(limits),
        array_text(each.power_w * 1_000 * ENERGY_FACTOR for each in limits.values()),
        array_text(reading_bounds(each)["memory_used_mib"] for each in limits.values()),
        array_text(limits),
    ]
    found = {}
    for resolution in Rollup.Resolution:
        buckets, values = rollup_condition(resolution, day, day + DAY)
        cleared: list[tuple[int, int]] = []
        uses: list[StoredUse] = []
        with connection.cursor() as cursor:
            cursor.execute(_IMPOSSIBLE_ROLLUPS_SQL.format(buckets=buckets), [*arrays, *values])
            for _, rows in groupby(cursor.fetchall(), key=lambda row: row[:2]):
                of_bucket, changed = _clear_bucket(list(rows))
                cleared += changed
                uses += of_bucket if changed else []
        if uses:
            lock_packing(resolution)
            write_rollups(resolution, uses)
            pack_rollups(resolution, now, {use.host for use in uses})
        found[int(resolution)] = cleared
    return found


def _clear_bucket(rows: Sequence[tuple[Any, ...]]) -> tuple[list[StoredUse], list[tuple[int, int]]]:
    """Return the rollups of one unit and bucket without impossible values, and those that were cleared."""
    uses, cleared = [], []
    for row in rows:
        unit, bucket, *possible, host, allocation, simulated = row[:8]
        use = UsageSums(**dict(zip(ROLLUP_MEASURES, row[8:], strict=True)))
        for name, is_possible in zip(_JUDGED, possible, strict=True):
            if not is_possible:
                setattr(use, name, None)
        if not all(possible):
            cleared.append((unit, int(bucket.timestamp())))
        uses.append(StoredUse(bucket, host, unit, allocation, use, simulated))
    return uses, cleared
