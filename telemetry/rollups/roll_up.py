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
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
from django.db import transaction

from telemetry.core.merged_arrays import merge_arrays
from telemetry.core.rollup_arrays import UsageArrays, loses_coverage
from telemetry.models import Rollup, RollupDue
from telemetry.rollups.cubes import write_cubes
from telemetry.rollups.due_marks import bucket_start, claim_due_marks, mark_days_due, mark_evidence_due
from telemetry.rollups.host_hours import record_ended_hours
from telemetry.rollups.host_units import HostUnits, load_units, usage_rows
from telemetry.rollups.minute_rollups import PACK_DELAY, ROLLUP_DELAY, RollupResult, roll_up_minutes
from telemetry.rollups.packing_locks import lock_packing
from telemetry.rollups.sample_arrays import load_holds
from telemetry.rollups.storage import is_ended, pack_rollups, write_open_rows
from telemetry.rollups.stored_sums import finer_totals, stored_coverage
from telemetry.sql_values import micros_of

BUCKETS_PER_TRANSACTION = 2_000


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
        for bucket, hosts in sorted(hosts_of.items()):
            done.add(_write_changed(resolution, bucket, hosts, now))
        if late:
            _pack(resolution, late, now)
        if resolution == Rollup.Resolution.HOUR:
            mark_evidence_due(hosts_of)
            write_cubes(hosts_of, now)
    return done


def _pack(resolution: int, hosts: Collection[int] | None, now: datetime) -> None:
    """Pack the rollups of ended hours or days. The hours of a day are packed when the day is due."""
    packed = pack_rollups(resolution, now - PACK_DELAY, hosts)
    if resolution == Rollup.Resolution.HOUR:
        mark_days_due(packed, now)


def _write_changed(resolution: int, bucket: datetime, hosts: Sequence[int], now: datetime) -> RollupResult:
    """Write the rollups of one hour or day of these hosts. Return the numbers of rows and of kept units.

    The rollups of a unit are kept if its coverage would fall. In this case its source rows were deleted, or
    its rollups were written without source rows.
    """
    units = load_units(hosts)
    parts, is_simulated = finer_totals(resolution, bucket, hosts, units.ids)
    units = replace(units, simulated=units.simulated | is_simulated)
    usage = _merged_usage(resolution, bucket, units, parts, now)
    stored, before = stored_coverage(resolution, bucket, hosts, units.ids)
    source = np.bincount(parts.unit, parts.sums["covered_seconds"], len(units.ids)).astype(np.int64)
    is_kept = np.zeros(len(units.ids), bool)
    is_kept[stored] = loses_coverage(before, source[stored])
    usage = usage.select(~is_kept[usage.unit])
    removed = stored[~is_kept[stored] & ~np.isin(stored, usage.unit)]
    write_open_rows(usage_rows(resolution, [bucket], units, usage, [(unit, 0) for unit in removed.tolist()]))
    return RollupResult(rows=len(usage), kept=int(is_kept.sum()))


def _merged_usage(
    resolution: int, bucket: datetime, units: HostUnits, parts: UsageArrays, now: datetime
) -> UsageArrays:
    """Return the usage of an hour merged from its minutes, or of a day merged from its hours.

    A unit that was held is in the result even if it has no minutes or hours. Time after ``now`` does not
    count as held.
    """
    until = max(bucket, min(bucket + timedelta(seconds=resolution), now))
    held = load_holds(bucket, until, units.ids)
    return merge_arrays(parts, held, micros_of(bucket), micros_of(until))
