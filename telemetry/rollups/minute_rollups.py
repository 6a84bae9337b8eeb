"""Roll up the due minutes of many hosts at once.

One step takes the oldest hour with due minutes. It claims the due minutes of as many hosts as fit into
``HOST_MINUTES_PER_STEP``: one minute of all hosts, or a whole hour of some. If an hour is over and all its
minutes are new, they are packed at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from django.db import connection, transaction

from telemetry.core.rollup_arrays import Bools, Ints, UsageArrays, loses_coverage, roll_up_arrays
from telemetry.models import ReadingFault, Rollup
from telemetry.readings.faults import FaultCount, count_faults
from telemetry.readings.unit_limits import load_limits
from telemetry.rollups.due_marks import mark_hours_due
from telemetry.rollups.host_units import HostUnits, load_units, usage_rows
from telemetry.rollups.packed_minutes import replace_packed_minutes
from telemetry.rollups.packing_locks import lock_packing
from telemetry.rollups.sample_arrays import load_holds, load_readings
from telemetry.rollups.storage import (
    delete_open_rows,
    is_ended,
    pack_rollups,
    write_open_rows,
)
from telemetry.rollups.stored_sums import stored_minutes
from telemetry.sql_values import array_text, micros_of

# A minute is rolled up this long after its end, so that late samples seldom cause a second write.
ROLLUP_DELAY = timedelta(seconds=20)
# Minutes and hours are packed this long after the end of their hour or day, for the same reason.
PACK_DELAY = timedelta(minutes=5)
HOST_MINUTES_PER_STEP = 7_500
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
MINUTES = 60

_FIRST_HOUR_SQL = """
SELECT date_trunc('hour', min(bucket), 'UTC') FROM telemetry_rollupdue WHERE resolution = 60 AND bucket <= %s
"""
_HOSTS_SQL = """
SELECT host_id, count(*) FROM telemetry_rollupdue
WHERE resolution = 60 AND bucket >= %s AND bucket < %s AND bucket <= %s GROUP BY host_id ORDER BY host_id
"""
_CLAIM_SQL = """
WITH claimed AS (
    DELETE FROM telemetry_rollupdue WHERE resolution = 60 AND bucket >= %s AND bucket < %s AND bucket <= %s
        AND host_id = ANY(%s::bigint[]) RETURNING host_id, bucket
)
SELECT host_id, bit_or(1::bigint << (extract(epoch FROM bucket)::bigint %% 3600 / 60)::integer)
FROM claimed GROUP BY host_id ORDER BY host_id
"""


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


@dataclass(frozen=True, slots=True)
class _Step:
    """The due minutes of some hosts in one hour. ``due`` has a row per host and a column per minute."""

    hour: datetime
    hosts: list[int]
    due: Bools
    units: HostUnits


@dataclass(frozen=True, slots=True)
class _Minutes:
    """The minutes to write, after a comparison with the stored ones.

    ``removed`` are the (position of the unit, minute) that have no rollups any more. ``replaced`` is True for
    a host if all its stored minutes are written again.
    """

    usage: UsageArrays
    removed: list[tuple[int, int]]
    faults: list[FaultCount]
    kept: int
    replaced: Bools


def roll_up_minutes(now: datetime) -> RollupResult | None:
    """Roll up one step of due minutes that have ended. Return None if none is due."""
    newest = now - ROLLUP_DELAY - MINUTE
    with connection.cursor() as cursor:
        cursor.execute(_FIRST_HOUR_SQL, [newest])
        hour: datetime | None = cursor.fetchone()[0]
        if hour is None:
            return None
        cursor.execute(_HOSTS_SQL, [hour, hour + HOUR, newest])
        hosts = _first_hosts(cursor.fetchall())
    is_over = is_ended(Rollup.Resolution.MINUTE, hour, now - PACK_DELAY)
    with transaction.atomic():
        if is_over:
            lock_packing(Rollup.Resolution.MINUTE)
        step = _claim(hour, hosts, newest)
        if not step.hosts:  # a concurrent run has claimed them
            return RollupResult()
        minutes = _compare_with_stored(step, _usage(step))
        rows = _write(step, minutes, is_over, now)
        count_faults(minutes.faults)
        mark_hours_due([(host, hour) for host in step.hosts], now)
    return RollupResult(int(step.due.sum()), rows, minutes.kept)


def _first_hosts(counts: list[tuple[int, int]]) -> list[int]:
    totals = np.cumsum([count for _, count in counts])
    most = max(1, int(np.searchsorted(totals, HOST_MINUTES_PER_STEP, side="right")))
    return [host for host, _ in counts[:most]]


def _claim(hour: datetime, hosts: Collection[int], newest: datetime) -> _Step:
    """Delete the marks of these minutes. A mark that a concurrent run has deleted is not in the result."""
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM_SQL, [hour, hour + HOUR, newest, array_text(hosts)])
        claimed: list[tuple[int, int]] = cursor.fetchall()
    masks = np.array([mask for _, mask in claimed], np.int64)
    due = (masks[:, None] >> np.arange(MINUTES)) & 1 == 1
    found = [host for host, _ in claimed]
    return _Step(hour, found, due, load_units(found))


def _usage(step: _Step) -> UsageArrays:
    """Return the usage of the due minutes. ``bucket`` is the minute of the hour."""
    due = np.flatnonzero(step.due.any(axis=0))
    first, last = int(due[0]), int(due[-1]) + 1
    start, end = step.hour + first * MINUTE, step.hour + last * MINUTE
    limits = load_limits(step.hosts)
    usage = roll_up_arrays(
        load_readings(start, end, step.units.ids),
        load_holds(start, end, step.units.ids),
        np.array([limits[unit].power_w for unit in step.units.ids.tolist()]),
        micros_of(start),
        micros_of(end),
    )
    usage = UsageArrays(usage.unit, usage.bucket + first, usage.allocation, usage.sums, usage.known)
    is_due = step.due[step.units.host[usage.unit], usage.bucket]
    return usage if is_due.all() else usage.select(is_due)


def _compare_with_stored(step: _Step, usage: UsageArrays) -> _Minutes:
    """Return the minutes to write.

    The stored minutes of a unit are kept if its coverage would fall. In this case its samples were deleted.
    """
    key = usage.unit * MINUTES + usage.bucket
    size = len(step.units.ids) * MINUTES
    covered = np.bincount(key, usage.sums["covered_seconds"], size).astype(np.int64)
    faults = np.bincount(key, usage.sums["energy_faults"], size).astype(np.int64)
    replaced = np.ones(len(step.hosts), bool)
    stored = stored_minutes(step.hour, step.hosts, step.units.ids.tolist())
    if not stored:
        return _Minutes(usage, [], _fault_counts(step, faults), 0, replaced)
    ids, minute, before, faults_before = np.array(stored, np.int64).T
    unit = np.searchsorted(step.units.ids, ids)
    is_due = step.due[step.units.host[unit], minute]
    replaced[step.units.host[unit[~is_due]]] = False
    unit, minute, before, faults_before = (values[is_due] for values in (unit, minute, before, faults_before))
    stored_key = unit * MINUTES + minute
    is_kept = loses_coverage(before, covered[stored_key])
    replaced[step.units.host[unit[is_kept]]] = False
    faults[stored_key] -= faults_before
    faults[stored_key[is_kept]] = 0
    chosen = ~np.isin(key, stored_key[is_kept])
    gone = ~is_kept & ~np.isin(stored_key, key)
    removed = list(zip(unit[gone].tolist(), minute[gone].tolist(), strict=True))
    return _Minutes(
        usage if chosen.all() else usage.select(chosen),
        removed,
        _fault_counts(step, faults),
        int(is_kept.sum()),
        replaced,
    )


def _fault_counts(step: _Step, faults: Ints) -> list[FaultCount]:
    return [
        FaultCount(
            step.hosts[step.units.host[key // MINUTES]],
            "energy_mj",
            ReadingFault.Kind.COUNTER,
            int(faults[key]),
            step.hour + (key % MINUTES) * MINUTE,
        )
        for key in np.flatnonzero(faults).tolist()
    ]


def _write(step: _Step, minutes: _Minutes, is_over: bool, now: datetime) -> int:
    """Write the minutes, and return the number of their rows."""
    packed = minutes.replaced & is_over
    usage, of_unit = minutes.usage, packed[step.units.host]
    if packed.any():
        hosts = [host for place, host in enumerate(step.hosts) if packed[place]]
        delete_open_rows(Rollup.Resolution.MINUTE, step.hour, step.hour + HOUR, hosts)
        positions = np.flatnonzero(of_unit)
        place_of = np.cumsum(of_unit) - 1
        chosen = usage.select(of_unit[usage.unit])
        moved = UsageArrays(
            place_of[chosen.unit], chosen.bucket, chosen.allocation, chosen.sums, chosen.known
        )
        units = step.units
        replace_packed_minutes(step.hour, units.ids[positions], units.simulated[positions], moved)
    if not packed.all():
        removed = [(unit, minute) for unit, minute in minutes.removed if not of_unit[unit]]
        starts = [step.hour + number * MINUTE for number in range(MINUTES)]
        open_usage = usage.select(~of_unit[usage.unit])
        write_open_rows(usage_rows(Rollup.Resolution.MINUTE, starts, step.units, open_usage, removed))
        if is_over:
            late = {host for place, host in enumerate(step.hosts) if not packed[place]}
            pack_rollups(Rollup.Resolution.MINUTE, now - PACK_DELAY, late)
    return len(usage)
