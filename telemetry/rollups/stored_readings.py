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

import numpy as np
from django.db import connection, transaction
from django.db.models import Max, Min

from scheduler.models import Host
from telemetry.core.reading_bounds import ENERGY_FACTOR, UnitLimits, reading_bounds
from telemetry.core.rollup import UsageSums
from telemetry.models import ReadingFault, Rollup, Sample, sample_bins
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
from telemetry.samples.columns import COLUMN_KINDS, REAL, UNKNOWN
from telemetry.samples.packed_locks import lock_packed_samples
from telemetry.samples.packing import load_packed, unit_hours, write_packed
from telemetry.samples.stored import is_known, sorted_samples
from telemetry.sql_values import array_text, time_of

HOSTS_PER_BATCH = 100
DAY = timedelta(days=1)
READINGS = tuple(reading_bounds(UnitLimits()))
# One row per unit with the bounds of its readings, in the order of READINGS. The bounds are rounded as the
# stored readings are.
_BOUNDS_SQL = "unnest({arrays}) AS bound (unit_id, {names})".format(
    arrays=", ".join(["%s::bigint[]", *("%s::float4[]" for _ in READINGS)]), names=", ".join(READINGS)
)
_OF_DAY_SQL = f"sample.ts >= %s AND sample.ts < %s AND {sample_bins('sample.ts', '%s', '%s')}"
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
    f" WHERE {_OF_DAY_SQL}"
)
_CLEAR_SAMPLES_SQL = (
    "UPDATE telemetry_sample AS sample SET "
    + ", ".join(_CLEARED_SQL.format(name, test) for name, test in _IMPOSSIBLE_SQL.items())
    + f" FROM {_BOUNDS_SQL}"
    + f" WHERE bound.unit_id = sample.unit_id AND {_OF_DAY_SQL} AND ("
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
    with connection.cursor() as cursor:
        cursor.execute("SELECT min(hour), max(hour) FROM telemetry_packedsamples")
        spans.append(dict(zip(("first", "last"), cursor.fetchone(), strict=True)))
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
            samples = _clear_samples(host, limits, day) + _clear_packed(host, limits, day)
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
        period = [day, day + DAY] * 2
        cursor.execute(_COUNT_SQL, [*arrays, *period])
        counts = cursor.fetchone()
        found = [
            FaultCount(host, name, ReadingFault.Kind.OUT_OF_BOUNDS, counts[2 * place], counts[2 * place + 1])
            for place, name in enumerate(READINGS)
            if counts[2 * place]
        ]
        if not found:
            return []
        count_faults(found)
        cursor.execute(_CLEAR_SAMPLES_SQL, [*arrays, *period])
        return list(cursor.fetchall())


def _clear_packed(host: int, limits: dict[int, UnitLimits], day: datetime) -> list[tuple[int, int]]:
    """Clear the packed samples of one host on one day, as ``_clear_samples`` does."""
    lock_packed_samples()
    units = np.array(sorted(limits), np.int64)
    columns = load_packed(units, day, day + DAY)
    bounds = [reading_bounds(limits[unit]) for unit in units.tolist()]
    cleared = np.zeros(len(columns["ts"]), bool)
    found = []
    for name in READINGS:
        is_real = COLUMN_KINDS[name] == REAL
        highest = np.array([each[name] for each in bounds], np.float32 if is_real else np.float64)
        values = columns[name]
        impossible = is_known(name, values) & ((values < 0) | (values > highest[columns["unit"]]))
        if impossible.any():
            last = time_of(int(columns["ts"][impossible].max()))
            kind = ReadingFault.Kind.OUT_OF_BOUNDS
            found.append(FaultCount(host, name, kind, int(impossible.sum()), last))
            values[impossible] = np.nan if is_real else UNKNOWN
            cleared |= impossible
    if not found:
        return []
    count_faults(found)
    hours = unit_hours(columns)
    changed = np.isin(hours, hours[cleared])
    write_packed(units, sorted_samples({name: column[changed] for name, column in columns.items()}))
    seconds = columns["ts"][cleared] // 1_000_000
    return list(zip(units[columns["unit"][cleared]].tolist(), seconds.tolist(), strict=True))


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
