"""Write the sample batches of the Redis stream to the database.

Each batch is written in one transaction with its Batch row. A batch that arrives twice is stored once,
because Batch rows are unique. A late batch marks the buckets of its samples as due, so they are rolled up
again.

If Redis loses batches, agents send them again. An agent deletes a batch only after the host's watermark has
passed it. The watermark passes a batch when it is in the database, or when it has been missing for
MISSING_BATCH_TIMEOUT.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import redis
from django.db import transaction

from scheduler.models import Host, Unit
from telemetry.core.rollup import SAMPLE_REACH_SECONDS
from telemetry.health import stray_processes
from telemetry.ingest.binary_copy import SAMPLE_COLUMNS, copy_samples
from telemetry.ingest.stream_format import (
    FLOAT8,
    INT4,
    INT8,
    PERCENT,
    READING_KINDS,
    SAMPLE_STREAM_KEY,
    DecodedBatch,
    decode_batch,
)
from telemetry.ingest.watermarks import advance_watermarks, insert_new_batches
from telemetry.models import Retention
from telemetry.rollups.due_marks import mark_minutes_due

BATCHES_PER_TRANSACTION = 500
CLOCK_SKEW_TOLERANCE = timedelta(seconds=120)  # maximum difference between the clocks of hosts

MAX_BY_KIND = {PERCENT: 100.0, FLOAT8: 1e12, INT4: 2.0**31 - 1, INT8: 2.0**62}

_MAX_VALUES = np.array([MAX_BY_KIND[kind] for kind in READING_KINDS.values()])
_IS_INTEGER = np.array([kind in (INT4, INT8) for kind in READING_KINDS.values()])
MAX_SAMPLE_AGE = timedelta(days=180)  # older samples are rejected, regardless of the retention


@dataclass
class IngestResult:
    """The counts of one run: stored batches, stored rows, rejected rows, and doubled batches.

    A doubled batch is a batch that had already been stored.
    """

    batches: int = 0
    rows: int = 0
    rejected: int = 0
    doubled: int = 0


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
    oldest = now - min(MAX_SAMPLE_AGE, timedelta(days=_sample_retention_days()))
    units = _unit_ids_by_host(known)
    for batch in batches:
        _drop_invalid_rows(
            batch, units[batch.host], oldest.timestamp(), (now + CLOCK_SKEW_TOLERANCE).timestamp()
        )
    with transaction.atomic():
        fresh = insert_new_batches(batches)
        done.doubled += len(batches) - len(fresh)
        if fresh:
            copy_samples(fresh)
            mark_minutes_due(_minutes_to_roll_up(fresh), now)
            stray_processes.record_stray_counts(_stray_counts(fresh), now)
            advance_watermarks(fresh, now)
    done.batches += len(fresh)
    done.rows += sum(len(batch.units) for batch in fresh)
    done.rejected += sum(batch.rejected for batch in fresh)


def _sample_retention_days() -> int:
    return Retention.objects.filter(pk=1).values_list("sample_days", flat=True).first() or 14


def _unit_ids_by_host(hosts: Iterable[int]) -> dict[int, dict[str, int]]:
    """Return the unit ids by host id and uuid of the unit.

    If several units have one uuid, the unit in service is returned.
    """
    found: dict[int, dict[str, int]] = defaultdict(dict)
    rows = (
        Unit.objects.filter(gpu__host__in=hosts)
        .order_by("pk")
        .values_list("gpu__host_id", "uuid", "pk", "retired_at")
    )
    for host, uuid, pk, retired in rows:
        if retired is None or uuid not in found[host]:
            found[host][uuid] = pk
    return found


def _drop_invalid_rows(batch: DecodedBatch, unit_ids: dict[str, int], oldest: float, newest: float) -> None:
    """Remove the invalid rows of ``batch``, and set ``batch.rejected`` to their number.

    A valid row belongs to a unit of the host. Its time is between ``oldest`` and ``newest`` (seconds since
    the epoch). Each of its readings is unknown or within the bounds of its type.
    """
    ids = np.array([unit_ids.get(name, -1) for name in batch.names] or [-1], dtype=np.int64)
    units = ids[batch.index] if len(batch.index) else np.empty(0, np.int64)
    times, readings = batch.values[:, 0], batch.values[:, 1:]
    unknown = np.isnan(readings)
    with np.errstate(invalid="ignore"):
        in_bounds = (
            (readings >= 0) & (readings <= _MAX_VALUES) & (~_IS_INTEGER | (readings == np.floor(readings)))
        )
    valid = (units >= 0) & (times >= oldest) & (times <= newest) & (unknown | in_bounds).all(axis=1)
    batch.rejected = len(batch.index) - int(valid.sum())
    batch.units, batch.values = units[valid], batch.values[valid]


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
