"""Write the sample batches of the Redis stream to the database.

Each batch is written in one transaction with its Batch row. A batch that arrives twice is stored once,
because Batch rows are unique. A late batch marks the buckets of its samples as due, so they are rolled up
again.

If Redis loses batches, agents send them again. An agent deletes a batch only after the host's watermark has
passed it. The watermark passes a batch when it is in the database, or when it has been missing for
MISSING_BATCH_TIMEOUT.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import redis
from django.db import transaction

from scheduler.models import Host
from telemetry.core.reading_bounds import UnitLimits, reading_bounds
from telemetry.core.rollup import SAMPLE_REACH_SECONDS
from telemetry.health import stray_processes
from telemetry.health.clock_skew import record_clock_skew
from telemetry.ingest.binary_copy import SAMPLE_COLUMNS, copy_samples
from telemetry.ingest.clock_correction import correct_clock
from telemetry.ingest.dcgm_fill import fill_from_dcgm
from telemetry.ingest.stream_format import (
    INT4,
    INT8,
    READING_KINDS,
    SAMPLE_STREAM_KEY,
    SPARSE_READING_KINDS,
    DecodedBatch,
    Floats,
    decode_batch,
)
from telemetry.ingest.usage_rows import store_usage
from telemetry.ingest.watermarks import advance_watermarks, insert_new_batches
from telemetry.models import ReadingFault, Retention
from telemetry.readings.faults import FaultCount, count_faults
from telemetry.readings.unit_limits import KnownUnit, load_units
from telemetry.rollups.due_marks import mark_minutes_due

BATCHES_PER_TRANSACTION = 500
CLOCK_SKEW_TOLERANCE = timedelta(seconds=120)  # maximum difference between the clocks of hosts

MAX_SAMPLE_AGE = timedelta(days=180)  # older samples are rejected, regardless of the retention


@dataclass
class IngestResult:
    """The counts of one run: stored batches, stored rows, rejected rows, and doubled batches.

    A doubled batch is a batch that had already been stored. ``impossible`` is the number of readings that
    were stored as unknown because they were impossible.
    """

    batches: int = 0
    rows: int = 0
    rejected: int = 0
    doubled: int = 0
    impossible: int = 0


def drain_stream(stream: redis.Redis, now: datetime, *, most: int = 3_000) -> IngestResult:
    """Write at most about ``most`` batches from the stream to the database, then delete them from the stream.

    Two concurrent runs may read the same batches, but each batch is stored only once. If a database error is
    raised, the batches stay on the stream.
    """
    done = IngestResult()
    taken = 0
    while taken < most:
        entries: list[tuple[bytes, dict[bytes, bytes]]] = stream.xrange(
            SAMPLE_STREAM_KEY, count=BATCHES_PER_TRANSACTION
        )  # type: ignore[assignment]
        if not entries:
            break
        _commit_batches(
            [batch for _, fields in entries if (batch := decode_batch(fields)) is not None], now, done
        )
        stream.xdel(SAMPLE_STREAM_KEY, *[name for name, _ in entries])
        taken += len(entries)
    return done


def _commit_batches(batches: Sequence[DecodedBatch], now: datetime, done: IngestResult) -> None:
    """Store the batches of known hosts in one transaction, and add the counts to ``done``."""
    hosts = Host.with_removed.filter(pk__in={batch.host for batch in batches})
    known = set(hosts.values_list("pk", flat=True))
    batches = [batch for batch in batches if batch.host in known]
    if not batches:
        return
    units = load_units(known)
    _check_rows(batches, units, now)
    with transaction.atomic():
        fresh = insert_new_batches(batches)
        done.doubled += len(batches) - len(fresh)
        if fresh:
            fill_from_dcgm(fresh)
            copy_samples(fresh)
            store_usage(fresh, units, _stored_period(now))
            mark_minutes_due(_minutes_to_roll_up(fresh), now)
            stray_processes.record_stray_counts(_stray_counts(fresh), now)
            advance_watermarks(fresh, now)
            faults = [fault for batch in fresh for fault in batch.faults]
            count_faults(faults)
            record_clock_skew(faults, now)
            impossible = (fault for fault in faults if fault.kind == ReadingFault.Kind.OUT_OF_BOUNDS)
            done.impossible += sum(fault.count for fault in impossible)
    done.batches += len(fresh)
    done.rows += sum(len(batch.units) for batch in fresh)
    done.rejected += sum(batch.rejected for batch in fresh)


def _check_rows(
    batches: Sequence[DecodedBatch], units: Mapping[int, Mapping[str, KnownUnit]], now: datetime
) -> None:
    """Correct the times of the batches, and remove their invalid rows and impossible readings."""
    oldest, newest = _stored_period(now)
    for batch in batches:
        known = units.get(batch.host, {})
        correct_clock(batch)
        _drop_invalid_rows(batch, known, oldest.timestamp(), newest.timestamp())
        _clear_impossible_readings(batch, known)


def _stored_period(now: datetime) -> tuple[datetime, datetime]:
    """Return the times of the oldest and of the newest row that is stored."""
    age = min(MAX_SAMPLE_AGE, timedelta(days=_sample_retention_days()))
    return now - age, now + CLOCK_SKEW_TOLERANCE


def _sample_retention_days() -> int:
    return Retention.objects.filter(pk=1).values_list("sample_days", flat=True).first() or 14


def _drop_invalid_rows(
    batch: DecodedBatch, known: Mapping[str, KnownUnit], oldest: float, newest: float
) -> None:
    """Remove the invalid rows of ``batch``, and add their number to ``batch.rejected``.

    A valid row belongs to a unit of the host. Its time is between ``oldest`` and ``newest`` (seconds since
    the epoch).
    """
    ids = [unit.id if (unit := known.get(name)) else -1 for name in batch.names]
    units = np.array(ids, dtype=np.int64)[batch.index] if len(batch.index) else np.empty(0, np.int64)
    times = batch.values[:, 0]
    valid = (units >= 0) & (times >= oldest) & (times <= newest)
    batch.rejected += len(batch.index) - int(valid.sum())
    batch.index, batch.units, batch.values = batch.index[valid], units[valid], batch.values[valid]
    if batch.sparse is not None:
        batch.sparse = batch.sparse[valid]


def _clear_impossible_readings(batch: DecodedBatch, known: Mapping[str, KnownUnit]) -> None:
    """Replace the impossible readings of ``batch`` by NaN (unknown), and count them in ``batch.faults``.

    A reading is impossible if it is negative, above the bound of its unit, or a fraction although it is a
    count.
    """
    if not len(batch.values):
        return
    limits = [unit.limits if (unit := known.get(name)) else UnitLimits() for name in batch.names]
    _clear_impossible(batch, batch.values[:, 1:], limits, READING_KINDS)
    if batch.sparse is not None:
        _clear_impossible(batch, batch.sparse, limits, SPARSE_READING_KINDS)


def _clear_impossible(
    batch: DecodedBatch, readings: Floats, limits: Sequence[UnitLimits], kinds: Mapping[str, str]
) -> None:
    """Clear and count the impossible values of a matrix whose columns are the readings of ``kinds``."""
    names = tuple(kinds)
    is_integer = np.array([kind in (INT4, INT8) for kind in kinds.values()])
    highest = np.array([_upper_bounds(each, names) for each in limits])[batch.index]
    with np.errstate(invalid="ignore"):
        possible = (readings >= 0) & (readings <= highest)
        possible &= ~is_integer | (readings == np.floor(readings))
    impossible = ~possible & ~np.isnan(readings)
    for column in np.flatnonzero(impossible.any(axis=0)):
        rows = np.flatnonzero(impossible[:, column])
        last = rows[np.argmax(batch.values[rows, 0])]
        batch.faults.append(
            FaultCount(
                batch.host,
                names[column],
                ReadingFault.Kind.OUT_OF_BOUNDS,
                len(rows),
                datetime.fromtimestamp(float(batch.values[last, 0]), UTC),
                float(readings[last, column]),
            )
        )
    readings[impossible] = np.nan


@functools.lru_cache(maxsize=2_000)
def _upper_bounds(limits: UnitLimits, names: tuple[str, ...]) -> tuple[float, ...]:
    """Return the upper bounds of the readings with these names, in their order."""
    bounds = reading_bounds(limits)
    return tuple(bounds[name] for name in names)


def _minutes_to_roll_up(batches: Sequence[DecodedBatch]) -> set[tuple[int, int]]:
    """Return (host id, start in seconds since the epoch) of every minute that samples may cover.

    A sample also covers time before its timestamp, at most SAMPLE_REACH_SECONDS.
    """
    due: set[tuple[int, int]] = set()
    for batch in batches:
        moments = batch.values[:, 0]
        for shifted in (moments, moments - SAMPLE_REACH_SECONDS):
            due |= {(batch.host, int(minute) * 60) for minute in np.unique(shifted // 60)}
    return due


def _stray_counts(batches: Sequence[DecodedBatch]) -> dict[tuple[int, int], tuple[float, int]]:
    """Return the last (time, number of stray processes) by (host id, unit id).

    Units without stray processes are left out.
    """
    column = SAMPLE_COLUMNS.index("stray_processes") - 2
    seen: dict[tuple[int, int], tuple[float, int]] = {}
    for batch in batches:
        for row in np.flatnonzero(np.nan_to_num(batch.values[:, column]) > 0):
            key, moment = (batch.host, int(batch.units[row])), float(batch.values[row, 0])
            if key not in seen or seen[key][0] < moment:
                seen[key] = (moment, int(batch.values[row, column]))
    return seen
