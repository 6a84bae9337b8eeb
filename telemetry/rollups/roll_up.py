"""Aggregate samples into rollups of a minute, an hour and a day, by unit and allocation.

Rollups hold sums, never averages. An hour is merged from its minutes, and a day from its hours. A late sample
marks its bucket as due again, and the whole bucket is written again. A bucket whose source rows were deleted
is not written again: the rollups of a unit never lose covered time.

A run claims marks by deleting them in the transaction that writes the rollups. Concurrent runs therefore
share the work, and each mark is processed once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Sum
from psycopg.types.range import TimestamptzRange

from scheduler.models import Allocation, Unit
from telemetry.core.rollup import (
    SAMPLE_REACH_SECONDS,
    UnitHold,
    UsageReading,
    UsageSums,
    merge_finer_usage,
    roll_up_readings,
    would_lose_coverage,
)
from telemetry.models import Rollup, RollupDue, Sample
from telemetry.rollups.due_marks import claim_due_marks, mark_coarser_due, mark_evidence_due
from telemetry.rollups.host_hours import record_ended_hours

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
    """The numbers of rolled-up buckets, of written rows, and of units whose rollups were kept.

    A bucket counts once for each host. The rollups of a unit are kept if its source rows no longer exist.
    """

    buckets: int = 0
    rows: int = 0
    kept: int = 0

    def add(self, other: RollupResult) -> None:
        """Add the numbers of another result."""
        self.buckets += other.buckets
        self.rows += other.rows
        self.kept += other.kept


@dataclass(frozen=True)
class _UnitUsage:
    """The usage of one unit in one bucket by allocation id, and the covered seconds of the source rows."""

    uses: dict[int | None, UsageSums]
    source_covered: float
    simulated: bool = False


def roll_up_due_buckets(now: datetime, *, max_buckets: int = 4_000) -> RollupResult:
    """Roll up due minutes that have ended, then due hours, then due days.

    Hours that have ended are due for each host with a held unit, so that held time without samples has rows
    too. The function stops after about ``max_buckets`` buckets.
    """
    done = RollupResult()
    record_ended_hours(now)
    for resolution in (Rollup.Resolution.MINUTE, Rollup.Resolution.HOUR, Rollup.Resolution.DAY):
        while done.buckets < max_buckets:
            due = _due_buckets(resolution, now)
            if not due:
                break
            done.add(_roll_up_buckets(resolution, due, now))
    return done


def _due_buckets(resolution: int, now: datetime) -> list[RollupDue]:
    newest = now - ROLLUP_DELAY - timedelta(seconds=60)
    marks = RollupDue.objects.filter(resolution=resolution)
    if resolution == Rollup.Resolution.MINUTE:
        marks = marks.filter(bucket__lte=newest)
    return list(marks.order_by("bucket", "host")[:BUCKETS_PER_TRANSACTION])


def _roll_up_buckets(resolution: int, due: Sequence[RollupDue], now: datetime) -> RollupResult:
    done = RollupResult()
    with transaction.atomic():
        hosts_of: dict[datetime, list[int]] = defaultdict(list)
        for bucket, host in claim_due_marks(due):
            hosts_of[bucket].append(host)
        for bucket, hosts in sorted(hosts_of.items()):
            if resolution == Rollup.Resolution.MINUTE:
                built = _minute_usage(bucket, hosts)
            else:
                built = _merged_usage(resolution, bucket, hosts, now)
            written, kept = _replace_rollups(resolution, bucket, hosts, built)
            done.rows += written
            done.kept += kept
        mark_coarser_due(resolution, hosts_of, now)
        if resolution == Rollup.Resolution.HOUR:
            mark_evidence_due(hosts_of)
    done.buckets = len(due)
    return done


def _replace_rollups(
    resolution: int, bucket: datetime, hosts: Collection[int], built: Mapping[int, _UnitUsage]
) -> tuple[int, int]:
    """Replace the rollups of one bucket. Return the numbers of written rows and of kept units.

    The rollups of a unit are kept if its coverage would fall. In this case its source rows were deleted, or
    its rollups were written without source rows.
    """
    units = Unit.objects.filter(gpu__host__in=hosts).values_list("pk", "gpu__host__simulated")
    simulated_units = dict(units)
    existing = Rollup.objects.filter(resolution=resolution, bucket=bucket, unit__in=list(simulated_units))
    before = dict(existing.values_list("unit").annotate(Sum("covered_seconds")).order_by("unit"))
    kept = {
        unit
        for unit, covered in before.items()
        if would_lose_coverage(covered, built[unit].source_covered if unit in built else 0.0)
    }
    existing.exclude(unit__in=kept).delete()
    rows = [
        _rollup_row(resolution, bucket, unit, allocation, use, usage.simulated or simulated_units[unit])
        for unit, usage in sorted(built.items())
        if unit not in kept
        for allocation, use in usage.uses.items()
    ]
    Rollup.objects.bulk_create(rows, batch_size=2_000)
    return len(rows), len(kept)


def _minute_usage(bucket: datetime, hosts: Collection[int]) -> dict[int, _UnitUsage]:
    """Return the usage of one minute by unit id, for the units of these hosts that have samples."""
    end = bucket + timedelta(minutes=1)
    readings = _load_readings(bucket, end, hosts)
    held = _load_holds(bucket, end, readings)
    built = {}
    for unit, series in readings.items():
        uses = roll_up_readings(series, held[unit], bucket.timestamp(), end.timestamp())
        built[unit] = _UnitUsage(uses, sum(use.covered_seconds for use in uses.values()))
    return built


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


def _merged_usage(
    resolution: int, bucket: datetime, hosts: Collection[int], now: datetime
) -> dict[int, _UnitUsage]:
    """Return the usage of an hour merged from its minutes, or of a day merged from its hours, by unit id.

    A unit that was held is in the result even if it has no minutes or hours. Time after ``now`` does not
    count as held.
    """
    finer = Rollup.Resolution.MINUTE if resolution == Rollup.Resolution.HOUR else Rollup.Resolution.HOUR
    end = bucket + timedelta(seconds=resolution)
    units = list(Unit.objects.filter(gpu__host__in=hosts).values_list("pk", flat=True))
    parts: dict[int, dict[int | None, list[UsageSums]]] = defaultdict(lambda: defaultdict(list))
    simulated: set[int] = set()
    finer_rollups = Rollup.objects.filter(
        resolution=finer, bucket__gte=bucket, bucket__lt=end, unit__in=units
    )
    rows = finer_rollups.values_list("unit_id", "allocation_id", "simulated", *ROLLUP_MEASURES)
    for unit, allocation, is_simulated, *values in rows:
        parts[unit][allocation].append(UsageSums(**dict(zip(ROLLUP_MEASURES, values, strict=True))))
        if is_simulated:
            simulated.add(unit)
    until = max(bucket, min(end, now))
    held = _load_holds(bucket, until, units)
    return {
        unit: _UnitUsage(
            merge_finer_usage(parts[unit], held[unit], bucket.timestamp(), until.timestamp()),
            sum(use.covered_seconds for uses in parts[unit].values() for use in uses),
            unit in simulated,
        )
        for unit in sorted({*parts, *held})
    }


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
