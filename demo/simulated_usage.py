"""Write usage and charges for the simulated past.

All rows are marked as simulated. The whole past gets hourly and daily rollups. The last day also gets raw
samples. The usual code calculates the charges. If the load is interrupted, it can be repeated: existing rows
are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby

import numpy as np
from django.db import connection, transaction
from psycopg.types.range import TimestamptzRange

from scheduler.models import Allocation, Gpu, HostStateChange, Unit, WorkloadType
from telemetry.core.rollup import UsageSums
from telemetry.ingest.binary_copy import COPY_SAMPLES_SQL as COPY_SAMPLES
from telemetry.ingest.binary_copy import READING_COLUMN_TYPES
from telemetry.models import ChargedUntil, Rollup, SettledAllocation, SettledStateChange
from telemetry.money.charges import charge_past
from telemetry.rollups.due_marks import mark_minutes_due
from telemetry.rollups.roll_up import roll_up_written_hours
from telemetry.rollups.storage import StoredUse, write_rollups

ProgressCallback = Callable[[int, int, str], None]
USAGE_SEED = 42
HOUR_SECONDS = 3600
ALLOCATIONS_PER_TRANSACTION = 500
RAW_SAMPLE_SPAN = timedelta(days=1)
RAW_SAMPLE_SECONDS = 30
# For this last part of the past, the periodic task computes minute rollups from the raw samples.
MINUTE_ROLLUP_SPAN = timedelta(hours=3)
SAMPLE_COVERAGE = 0.992
IDLE_POWER_W, BUSY_POWER_W = 90.0, 560.0


@dataclass(frozen=True)
class _UsageProfile:
    """The hardware use of one type of work. All values are between 0 and 1."""

    sm: float  # SM activity as a share of the utilisation
    tensor: float  # tensor activity as a share of the SM activity
    noise: float  # standard deviation of the hourly mean, relative to the mean
    empty: float  # share of the idle time in which no process uses the GPU
    night: float  # use at night relative to use by day
    memory: float  # used share of the unit's memory


USAGE_PROFILES = {
    WorkloadType.TRAINING: _UsageProfile(sm=0.72, tensor=0.55, noise=0.06, empty=0.1, night=1.0, memory=0.82),
    WorkloadType.INFERENCE: _UsageProfile(
        sm=0.45, tensor=0.5, noise=0.12, empty=0.05, night=0.45, memory=0.6
    ),
    WorkloadType.INTERACTIVE: _UsageProfile(
        sm=0.3, tensor=0.25, noise=0.5, empty=0.45, night=0.08, memory=0.35
    ),
    WorkloadType.OTHER: _UsageProfile(sm=0.4, tensor=0.3, noise=0.25, empty=0.3, night=0.8, memory=0.4),
}


@dataclass(frozen=True)
class _SimulatedHold:
    id: int
    unit: int
    memory_mib: int
    type: str
    utilisation: float  # mean utilisation, 0 to 1
    start: datetime
    end: datetime


def load_simulated_usage(
    utilisation: Mapping[int, float],
    *,
    start: datetime,
    end: datetime,
    now: datetime,
    progress: ProgressCallback | None = None,
) -> int:
    """Write the usage of the simulated allocations in ``[start, end)``, then charge it.

    The charges cover the time from ``start`` to the first existing charges. ``utilisation`` has the mean
    utilisation of each workload in per cent, by workload id. ``progress`` is called with (done, total, text).
    Returns the number of charge lines.
    """
    gpus = defer_charges(end)
    held = _simulated_holds(utilisation, start, end)
    days = max(1, math.ceil((end - start) / timedelta(days=1)))
    batches = _batches_of_units(held)
    total = len(batches) + 2 + days
    report = progress or _ignore_progress
    for number, batch in enumerate(batches):
        report(number, total, "simulated use of past workloads")
        _write_rollups(batch, start, end)
    roll_up_written_hours(start, end, now)
    report(len(batches), total, "simulated samples of the last day")
    _write_samples(
        [hold for hold in held if hold.end > end - RAW_SAMPLE_SPAN],
        max(start, end - RAW_SAMPLE_SPAN),
        end,
        now,
    )
    _mark_settled(held, end, now)
    done = len(batches) + 2

    def day_is_done(day: datetime) -> None:
        nonlocal done
        done = min(done + 1, total)
        report(done, total, f"charges of {day:%-d %B}")

    lines = charge_past(gpus, start, now, day_is_done)
    report(total, total, "history is complete")
    return lines


def _ignore_progress(done: int, total: int, words: str) -> None:
    """Do nothing. This is the default for ``progress``."""


def defer_charges(end: datetime) -> list[int]:
    """Make the periodic charging skip the time before ``end``. Return the ids of all GPUs.

    This affects only GPUs without charges. ``load_simulated_usage`` charges the time before ``end``. Call
    this function before the rows of the past are written. Otherwise the periodic charging could charge the
    past before its usage is written.
    """
    gpus = list(Gpu.objects.order_by("pk").values_list("pk", flat=True))
    begin = end.replace(microsecond=0)
    rows = [ChargedUntil(gpu_id=gpu, since=begin, until=begin) for gpu in gpus]
    ChargedUntil.objects.bulk_create(rows, ignore_conflicts=True)
    return gpus


def _simulated_holds(
    utilisation: Mapping[int, float], start: datetime, end: datetime
) -> list[_SimulatedHold]:
    rows = Allocation.objects.filter(
        workload__simulated=True, period__overlap=TimestamptzRange(start, end)
    ).order_by("pk")
    found = rows.values_list("pk", "unit_id", "unit__memory_mib", "workload_id", "workload__type", "period")
    return [
        _SimulatedHold(
            pk,
            unit,
            memory,
            kind,
            utilisation.get(workload, 60.0) / 100,
            period.lower,
            min(period.upper or end, end),
        )
        for pk, unit, memory, workload, kind, period in found
        if (period.upper or end) > period.lower
    ]


def _batches_of_units(held: Sequence[_SimulatedHold]) -> list[list[_SimulatedHold]]:
    """Divide the holds into batches. All holds of a unit are in one batch, because they may share an hour."""
    batches: list[list[_SimulatedHold]] = []
    for _, of_unit in groupby(
        sorted(held, key=lambda hold: (hold.unit, hold.id)), key=lambda hold: hold.unit
    ):
        if not batches or len(batches[-1]) >= ALLOCATIONS_PER_TRANSACTION:
            batches.append([])
        batches[-1] += of_unit
    return batches


@transaction.atomic
def _write_rollups(batch: Sequence[_SimulatedHold], start: datetime, end: datetime) -> None:
    written = Rollup.objects.within(Rollup.Resolution.HOUR, start - timedelta(hours=1), end)
    there = set(
        written.filter(allocation__in=[hold.id for hold in batch]).values_list("allocation_id", flat=True)
    )
    host_of = dict(Unit.objects.values_list("pk", "gpu__host_id"))
    uses = [
        StoredUse(bucket, host_of[hold.unit], hold.unit, hold.id, use, True)
        for hold in batch
        if hold.id not in there
        for bucket, use in _hourly_rollups(hold)
    ]
    write_rollups(Rollup.Resolution.HOUR, uses)


def _hourly_rollups(hold: _SimulatedHold) -> Iterator[tuple[datetime, UsageSums]]:
    """Yield the start and the usage of each hour of one allocation.

    They follow the usage profile of the type of work. The allocation's id seeds the random numbers.
    """
    profile = USAGE_PROFILES.get(WorkloadType(hold.type), USAGE_PROFILES[WorkloadType.OTHER])
    first = int(hold.start.timestamp()) // HOUR_SECONDS * HOUR_SECONDS
    begin, finish = hold.start.timestamp(), hold.end.timestamp()
    count = max(1, math.ceil((finish - first) / HOUR_SECONDS))
    random = np.random.default_rng([USAGE_SEED, hold.id])
    busy_shares = _hourly_busy_shares(hold, profile, first, count, random)
    inefficient_job = random.random() < 0.18  # a job that is busy, but has low SM activity
    sm_share = profile.sm * (0.2 if inefficient_job else random.uniform(0.85, 1.15))
    memory = int(hold.memory_mib * min(0.97, profile.memory * random.uniform(0.6, 1.15)))
    gap = (
        random.integers(0, count) if count > 30 and random.random() < 0.15 else -1
    )  # an hour that the agent reported only in part
    for number in range(count):
        bucket = first + number * HOUR_SECONDS
        held = min(bucket + HOUR_SECONDS, finish) - max(bucket, begin)
        if held <= 0:
            continue
        covered = held * (0.35 if number == gap else SAMPLE_COVERAGE)
        busy = covered * float(busy_shares[number])
        empty = (covered - busy) * profile.empty
        peak = min(100.0, 100.0 * float(busy_shares[number]) * 1.15 + 8) if busy > 0 else 0.0
        used = busy * min(1.0, 0.9 + 0.1 * hold.utilisation)
        sm = used * min(1.0, sm_share)
        power = IDLE_POWER_W + (BUSY_POWER_W - IDLE_POWER_W) * used / covered
        yield (
            datetime.fromtimestamp(bucket, UTC),
            UsageSums(
                held_seconds=held,
                covered_seconds=covered,
                samples=int(covered // 10),
                utilisation_seconds=used,
                utilisation_max=peak,
                busy_seconds=busy,
                inefficient_seconds=busy * (0.9 if inefficient_job else 0.04),
                sm_unmeasured_seconds=0.0,
                idle_seconds=covered - busy - empty,
                empty_seconds=empty,
                sm_active_seconds=sm,
                tensor_active_seconds=sm * profile.tensor,
                memory_used_max_mib=memory if busy > 0 else memory // 3,
                energy_mj=int(power * covered * 1000),
            ),
        )


def _hourly_busy_shares(
    hold: _SimulatedHold, profile: _UsageProfile, first: int, count: int, random: np.random.Generator
) -> np.ndarray:
    """Return the share of each hour in which the unit is busy, from 0 to 1.

    It follows the mean utilisation and a daily rhythm, with random noise.
    """
    hour_of_day = ((first // HOUR_SECONDS) + np.arange(count)) % 24
    day = (np.cos((hour_of_day - 14) / 24 * 2 * np.pi) + 1) / 2
    rhythm = profile.night + (1 - profile.night) * day
    shares = hold.utilisation * rhythm * (1 + random.normal(0, profile.noise, count))
    if hold.type == WorkloadType.INTERACTIVE:
        # Interactive work is idle in about half of the hours.
        shares = np.where(random.random(count) < 0.45, 0.0, shares * 1.8)
    return np.clip(shares, 0.0, 0.99)


def _write_samples(held: Sequence[_SimulatedHold], start: datetime, end: datetime, now: datetime) -> None:
    """Write raw samples of the last day.

    The last hours are marked, so that the periodic task computes their rollups by minute.
    """
    units = dict(Unit.objects.values_list("pk", "gpu__host_id"))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM telemetry_sample WHERE ts >= %(start)s AND ts < %(end)s"
            " AND allocation_id = ANY(%(allocations)s)"
            " UNION ALL"
            " SELECT 1 FROM telemetry_packedsamples WHERE hour >= %(start)s AND hour < %(end)s LIMIT 1",
            {"start": start, "end": end, "allocations": [hold.id for hold in held]},
        )
        if cursor.fetchone() is not None:
            return
        with cursor.copy(COPY_SAMPLES) as copy:
            copy.set_types(["int8", "timestamptz", "int8", *READING_COLUMN_TYPES])
            for hold in held:
                for row in _raw_samples(hold, start, end):
                    copy.write_row(row)
    recent = int(max(start, end - MINUTE_ROLLUP_SPAN).timestamp()) // HOUR_SECONDS * HOUR_SECONDS
    hosts = {units[hold.unit] for hold in held if hold.end.timestamp() > recent}
    mark_minutes_due(
        {(host, minute) for host in hosts for minute in range(recent, int(end.timestamp()), 60)}, now
    )


def _raw_samples(hold: _SimulatedHold, start: datetime, end: datetime) -> Iterator[tuple[object, ...]]:
    profile = USAGE_PROFILES.get(WorkloadType(hold.type), USAGE_PROFILES[WorkloadType.OTHER])
    begin, finish = max(hold.start, start).timestamp(), min(hold.end, end).timestamp()
    count = int((finish - begin) // RAW_SAMPLE_SECONDS)
    if count <= 0:
        return
    first = int(begin) // HOUR_SECONDS * HOUR_SECONDS
    hours = int((finish - first) // HOUR_SECONDS) + 1
    random = np.random.default_rng([USAGE_SEED, hold.id, 1])
    shares = _hourly_busy_shares(hold, profile, first, hours, random)
    moments = begin + RAW_SAMPLE_SECONDS * (1 + np.arange(count))
    hourly = shares[np.minimum(((moments - first) // HOUR_SECONDS).astype(int), hours - 1)]
    busy = np.where(hourly > 0.02, np.clip(100 * (hourly + random.normal(0, 0.05, count)), 0, 100), 0.0)
    processes = np.where((busy > 0) | (random.random(count) > profile.empty), 1, 0)
    memory = int(hold.memory_mib * profile.memory)
    for moment, use, running in zip(moments.tolist(), busy.tolist(), processes.tolist(), strict=True):
        sm = use * profile.sm
        power = IDLE_POWER_W + (BUSY_POWER_W - IDLE_POWER_W) * use / 100
        yield (
            hold.unit,
            datetime.fromtimestamp(moment, UTC),
            hold.id,
            use,
            sm,
            sm * profile.tensor,
            memory if running else 450,
            use * 0.6,
            power,
            int(power * (moment - begin) * 1000),
            38 + use * 0.32,
            42 + use * 0.36,
            1_755 if use > 0 else 345,
            0,
            None,
            None,
            None,
            int(running),
            0,
        )


def _mark_settled(held: Sequence[_SimulatedHold], end: datetime, now: datetime) -> None:
    """Mark the allocations and state changes of the past as settled.

    The periodic charging compares rows that are not settled with earlier charges. The past needs no such
    comparison, because it is charged only after all its rows were written.
    """
    SettledAllocation.objects.bulk_create(
        [SettledAllocation(allocation_id=hold.id, settled_at=now) for hold in held],
        ignore_conflicts=True,
        batch_size=2_000,
    )
    changes = HostStateChange.objects.filter(settledstatechange=None, at__lt=end)
    SettledStateChange.objects.bulk_create(
        [SettledStateChange(change=change, settled_at=now) for change in changes], ignore_conflicts=True
    )
