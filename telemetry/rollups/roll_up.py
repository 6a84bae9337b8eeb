"""Aggregate samples into rollups of a minute, an hour and a day, by unit and allocation.

Rollups hold sums, never averages. An hour is merged from its minutes, and a day from its hours once it is
over. A late sample marks its bucket as due again, and the bucket of its host is written again. A bucket whose
source rows were deleted is not written again: the rollups of a unit never lose covered time.

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
from telemetry.core.rollup import UnitHold, UsageSums, merge_finer_usage, would_lose_coverage
from telemetry.models import Rollup, RollupDue
from telemetry.rollups.cubes import write_cubes
from telemetry.rollups.due_marks import bucket_start, claim_due_marks, mark_days_due, mark_evidence_due
from telemetry.rollups.host_hours import record_ended_hours
from telemetry.rollups.minute_rollups import PACK_DELAY, ROLLUP_DELAY, RollupResult, roll_up_minutes
from telemetry.rollups.packing_locks import lock_packing
from telemetry.rollups.storage import StoredUse, is_ended, pack_rollups, write_rollups
from telemetry.rollups.stored_sums import finer_totals, stored_coverage

BUCKETS_PER_TRANSACTION = 2_000


@dataclass(frozen=True)
class _UnitUsage:
    """The usage of one unit in one bucket by allocation id, and the covered seconds of the source rows."""

    uses: dict[int | None, UsageSums]
    source_covered: float
    simulated: bool = False


def roll_up_due_buckets(
    now: datetime,
    *,
    max_buckets: int | None = 50_000,
    resolutions: Sequence[Rollup.Resolution] = tuple(Rollup.Resolution),
) -> RollupResult:
    """Roll up due minutes and days that have ended, and due hours.

    An hour in progress is merged from its minutes so far. Hours that have ended are due for each host with a
    held unit, so that held time without samples has rows too. The function stops after about ``max_buckets``
    buckets; None means no limit.
    """
    record_ended_hours(now)
    return _roll_up(resolutions, now, math.inf if max_buckets is None else max_buckets)


def roll_up_written_hours(start: datetime, end: datetime, now: datetime) -> RollupResult:
    """Roll up the days and cubes of ``[start, end)``, whose hours were written without samples."""
    with transaction.atomic():
        _pack(Rollup.Resolution.HOUR, None, now)
    day = bucket_start(start, Rollup.Resolution.DAY)
    while day < end:
        with transaction.atomic():
            write_cubes([day + timedelta(hours=hour) for hour in range(24)], min(now, end))
        day += timedelta(days=1)
    return _roll_up((Rollup.Resolution.DAY,), now)


def _roll_up(
    resolutions: Sequence[Rollup.Resolution], now: datetime, max_buckets: float = math.inf
) -> RollupResult:
    done = RollupResult()
    for resolution in resolutions:
        is_minute = resolution == Rollup.Resolution.MINUTE
        while done.buckets < max_buckets:
            step = roll_up_minutes(now) if is_minute else _roll_up_longer(resolution, now)
            if step is None:
                break
            done.add(step)
        with transaction.atomic():
            _pack(resolution, None, now)
    return done


def _roll_up_longer(resolution: int, now: datetime) -> RollupResult | None:
    """Roll up some due hours or days. Return None if none is due."""
    marks = RollupDue.objects.filter(resolution=resolution)
    if resolution == Rollup.Resolution.DAY:
        marks = marks.filter(bucket__lte=now - ROLLUP_DELAY - timedelta(seconds=resolution))
    due = list(marks.order_by("bucket", "host")[:BUCKETS_PER_TRANSACTION])
    if not due:
        return None
    late = {mark.host_id for mark in due if is_ended(resolution, mark.bucket, now - PACK_DELAY)}
    done = RollupResult(len(due))
    with transaction.atomic():
        if late:
            lock_packing(resolution)
        hosts_of: dict[datetime, list[int]] = defaultdict(list)
        for bucket, host in claim_due_marks(due):
            hosts_of[bucket].append(host)
        uses: list[StoredUse] = []
        for bucket, hosts in sorted(hosts_of.items()):
            written, kept = _changed_rollups(resolution, bucket, hosts, now)
            uses += written
            done.kept += kept
        write_rollups(resolution, uses)
        if late:
            _pack(resolution, late, now)
        done.rows = sum(use.use is not None for use in uses)
        if resolution == Rollup.Resolution.HOUR:
            mark_evidence_due(hosts_of)
            write_cubes(hosts_of, now)
    return done


def _pack(resolution: int, hosts: Collection[int] | None, now: datetime) -> None:
    """Pack the rollups of ended hours or days. The hours of a day are packed when the day is due."""
    packed = pack_rollups(resolution, now - PACK_DELAY, hosts)
    if resolution == Rollup.Resolution.HOUR:
        mark_days_due(packed, now)


def _changed_rollups(
    resolution: int, bucket: datetime, hosts: Collection[int], now: datetime
) -> tuple[list[StoredUse], int]:
    """Return the rollups of one hour or day to write, and the number of units whose rollups are kept.

    The rollups of a unit are kept if its coverage would fall. In this case its source rows were deleted, or
    its rollups were written without source rows.
    """
    units = Unit.objects.filter(gpu__host__in=hosts).values_list("pk", "gpu__host_id", "gpu__host__simulated")
    host_of = {unit: (host, is_simulated) for unit, host, is_simulated in units}
    before = stored_coverage(resolution, bucket, hosts, host_of)
    built = _merged_usage(resolution, bucket, hosts, host_of, now)
    kept = {
        unit
        for unit, (covered, _) in before.items()
        if would_lose_coverage(covered, built[unit].source_covered if unit in built else 0.0)
    }
    uses: list[StoredUse] = []
    for unit in sorted({*before, *built} - kept):
        host, is_simulated = host_of[unit]
        usage = built.get(unit)
        if usage is None or not usage.uses:
            uses.append(StoredUse(bucket, host, unit))
            continue
        simulated = usage.simulated or is_simulated
        uses += [
            StoredUse(bucket, host, unit, allocation, use, simulated)
            for allocation, use in usage.uses.items()
        ]
    return uses, len(kept)


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
    resolution: int, bucket: datetime, hosts: Collection[int], units: Collection[int], now: datetime
) -> dict[int, _UnitUsage]:
    """Return the usage of an hour merged from its minutes, or of a day merged from its hours, by unit id.

    A unit that was held is in the result even if it has no minutes or hours. Time after ``now`` does not
    count as held.
    """
    parts: dict[int, dict[int | None, list[UsageSums]]] = defaultdict(dict)
    simulated: set[int] = set()
    for unit, allocation, is_simulated, use in finer_totals(resolution, bucket, hosts, units):
        parts[unit][allocation] = [use]
        if is_simulated:
            simulated.add(unit)
    until = max(bucket, min(bucket + timedelta(seconds=resolution), now))
    held = _load_holds(bucket, until, units)
    return {
        unit: _UnitUsage(
            merge_finer_usage(parts[unit], held[unit], bucket.timestamp(), until.timestamp()),
            sum(use.covered_seconds for uses in parts[unit].values() for use in uses),
            unit in simulated,
        )
        for unit in sorted({*parts, *held})
    }
