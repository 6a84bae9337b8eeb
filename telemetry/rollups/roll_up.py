"""Aggregate samples into rollups of a minute, an hour and a day, by unit and allocation.

Rollups hold sums, never averages. An hour is merged from its minutes, and a day from its hours. A late sample
marks its bucket as due again, and the whole bucket is written again.

A run claims marks by deleting them in the transaction that writes the rollups. Concurrent runs therefore
share the work, and each mark is processed once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from psycopg.types.range import TimestamptzRange

from scheduler.models import Allocation, Unit
from telemetry.core.rollup import (
    SAMPLE_REACH_SECONDS,
    UnitHold,
    UsageReading,
    UsageSums,
    merge_usage,
    roll_up_readings,
)
from telemetry.models import Rollup, RollupDue, Sample
from telemetry.rollups.due_marks import claim_due_marks, mark_coarser_due

# A minute is rolled up this long after its end, so that late samples seldom cause a second write.
ROLLUP_DELAY = timedelta(seconds=20)
BUCKETS_PER_TRANSACTION = 400
ROLLUP_MEASURES = (
    "held_seconds",
    "covered_seconds",
    "samples",
    "utilisation_seconds",
    "utilisation_max",
    "busy_seconds",
    "inefficient_seconds",
    "idle_seconds",
    "empty_seconds",
    "sm_active_seconds",
    "tensor_active_seconds",
    "memory_used_max_mib",
    "energy_mj",
)


@dataclass
class RollupResult:
    """The number of buckets that were rolled up, and the number of rows that were written.

    A bucket counts once for each host.
    """

    buckets: int = 0
    rows: int = 0


def roll_up_due_buckets(now: datetime, *, max_buckets: int = 4_000) -> RollupResult:
    """Roll up due minutes that have ended, then due hours, then due days.

    The function stops after about ``max_buckets`` buckets.
    """
    done = RollupResult()
    for resolution in (Rollup.Resolution.MINUTE, Rollup.Resolution.HOUR, Rollup.Resolution.DAY):
        while done.buckets < max_buckets:
            due = _due_buckets(resolution, now)
            if not due:
                break
            done.rows += _roll_up_buckets(resolution, due, now)
            done.buckets += len(due)
    return done


def _due_buckets(resolution: int, now: datetime) -> list[RollupDue]:
    newest = now - ROLLUP_DELAY - timedelta(seconds=60)
    marks = RollupDue.objects.filter(resolution=resolution)
    if resolution == Rollup.Resolution.MINUTE:
        marks = marks.filter(bucket__lte=newest)
    return list(marks.order_by("bucket", "host")[:BUCKETS_PER_TRANSACTION])


def _roll_up_buckets(resolution: int, due: Sequence[RollupDue], now: datetime) -> int:
    with transaction.atomic():
        hosts_of: dict[datetime, list[int]] = defaultdict(list)
        for bucket, host in claim_due_marks(due):
            hosts_of[bucket].append(host)
        rows: list[Rollup] = []
        for bucket, hosts in sorted(hosts_of.items()):
            units = list(Unit.objects.filter(gpu__host__in=hosts).values_list("pk", flat=True))
            Rollup.objects.filter(resolution=resolution, bucket=bucket, unit__in=units).delete()
            if resolution == Rollup.Resolution.MINUTE:
                rows += _minute_rollups(bucket, hosts)
            else:
                rows += _merge_finer_rollups(resolution, bucket, units)
        Rollup.objects.bulk_create(rows, batch_size=2_000)
        mark_coarser_due(resolution, hosts_of, now)
    return len(rows)


def _minute_rollups(bucket: datetime, hosts: Collection[int]) -> list[Rollup]:
    """Return the rollups of one minute for the units of these hosts."""
    end = bucket + timedelta(minutes=1)
    readings = _load_readings(bucket, end, hosts)
    if not readings:
        return []
    held = _load_holds(bucket, end, readings)
    simulated = set(
        Unit.objects.filter(pk__in=readings, gpu__host__simulated=True).values_list("pk", flat=True)
    )
    rows = []
    for unit, series in sorted(readings.items()):
        uses = roll_up_readings(series, held[unit], bucket.timestamp(), end.timestamp())
        rows += [
            _rollup_row(Rollup.Resolution.MINUTE, bucket, unit, allocation, use, unit in simulated)
            for allocation, use in uses.items()
        ]
    return rows


def _load_readings(start: datetime, end: datetime, hosts: Collection[int]) -> dict[int, list[UsageReading]]:
    """Return the samples that cover part of ``[start, end)`` by unit id, in order of time."""
    reach = timedelta(seconds=SAMPLE_REACH_SECONDS)
    units = Unit.objects.filter(gpu__host__in=hosts).values("pk")
    samples = Sample.objects.filter(unit__in=units, ts__gte=start - reach, ts__lt=end + reach).order_by(
        "unit", "ts"
    )
    readings: dict[int, list[UsageReading]] = defaultdict(list)
    rows = samples.values_list(
        "unit_id",
        "ts",
        "utilisation",
        "sm_active",
        "tensor_active",
        "memory_used_mib",
        "energy_mj",
        "processes",
    )
    for unit, ts, utilisation, sm, tensor, memory, energy, processes in rows:
        readings[unit].append(
            UsageReading(ts.timestamp(), utilisation, sm, tensor, memory, energy, processes)
        )
    return readings


def _load_holds(start: datetime, end: datetime, units: Iterable[int]) -> dict[int, list[UnitHold]]:
    """Return the allocations in ``[start, end)`` by unit id, in order of time."""
    holds: dict[int, list[UnitHold]] = defaultdict(list)
    rows = Allocation.objects.filter(unit__in=list(units), period__overlap=TimestamptzRange(start, end))
    for unit, pk, period in rows.values_list("unit_id", "pk", "period"):
        until = math.inf if period.upper is None else period.upper.timestamp()
        holds[unit].append(UnitHold(pk, period.lower.timestamp(), until))
    for unit_holds in holds.values():
        unit_holds.sort(key=lambda hold: hold.start)
    return holds


def _merge_finer_rollups(resolution: int, bucket: datetime, units: Collection[int]) -> list[Rollup]:
    """Return the rollups of an hour merged from its minutes, or of a day from its hours."""
    finer = Rollup.Resolution.MINUTE if resolution == Rollup.Resolution.HOUR else Rollup.Resolution.HOUR
    end = bucket + timedelta(seconds=resolution)
    parts: dict[tuple[int, int | None], list[UsageSums]] = defaultdict(list)
    simulated: set[tuple[int, int | None]] = set()
    finer_rollups = Rollup.objects.filter(
        resolution=finer, bucket__gte=bucket, bucket__lt=end, unit__in=units
    )
    rows = finer_rollups.values_list("unit_id", "allocation_id", "simulated", *ROLLUP_MEASURES)
    for unit, allocation, is_simulated, *values in rows:
        parts[unit, allocation].append(UsageSums(**dict(zip(ROLLUP_MEASURES, values, strict=True))))
        if is_simulated:
            simulated.add((unit, allocation))
    return [
        _rollup_row(resolution, bucket, unit, allocation, merge_usage(uses), (unit, allocation) in simulated)
        for (unit, allocation), uses in sorted(parts.items(), key=lambda item: (item[0][0], item[0][1] or 0))
    ]


def _rollup_row(
    resolution: int, bucket: datetime, unit: int, allocation: int | None, use: UsageSums, simulated: bool
) -> Rollup:
    measures = {name: getattr(use, name) for name in ROLLUP_MEASURES}
    return Rollup(
        resolution=resolution,
        bucket=bucket,
        unit_id=unit,
        allocation_id=allocation,
        simulated=simulated,
        **measures,
    )
