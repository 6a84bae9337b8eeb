"""Batches from the stream into samples: one COPY and one Batch row per batch, in the same transaction.

A batch that came twice lands once (the Batch row is unique); one that came late lands in its own bucket, which is marked to be
rolled up again. What Redis loses, the agent sends again: it deletes only up to the watermark, which follows the commits.
Rows travel and are checked as matrices of floats (NaN for unknown), because a fleet of 10,000 GPUs sends 1,000 rows a second.
"""

from __future__ import annotations

import json
import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import redis
from django.db import connection, transaction
from psycopg.types.range import TimestamptzRange

from agent.protocol import SampleBatch
from scheduler.models import Allocation, Host, Unit
from telemetry.core.rollup import SAMPLE_REACH_SECONDS
from telemetry.health import stray_processes
from telemetry.models import Batch, Retention, Rollup, SampleWatermark

log = logging.getLogger(__name__)

SAMPLE_STREAM_KEY = "gpupool:samples"
BATCHES_PER_TRANSACTION = 500
CLOCK_SKEW_TOLERANCE = timedelta(seconds=120)  # clocks may differ by this much
MISSING_BATCH_TIMEOUT = timedelta(
    minutes=10
)  # a batch that is missing this long will not come: its agent's spool was full

INT4, INT8, FLOAT8, PERCENT = "int4", "int8", "float8", "per cent"
# The readings of a row on the stream, after its ts; agent.protocol.SampleRow says what they mean.
READING_KINDS = {
    "utilisation": PERCENT,
    "sm_active": PERCENT,
    "tensor_active": PERCENT,
    "memory_used_mib": INT4,
    "memory_utilisation": PERCENT,
    "power_w": FLOAT8,
    "energy_mj": INT8,
    "temperature_c": FLOAT8,
    "memory_temperature_c": FLOAT8,
    "sm_clock_mhz": INT4,
    "throttle_reasons": INT8,
    "pcie_rx_kib": INT8,
    "pcie_tx_kib": INT8,
    "nvlink_kib": INT8,
    "processes": INT4,
    "stray_processes": INT4,
}
ROW_WIDTH = 1 + len(READING_KINDS)
MAX_BY_KIND = {PERCENT: 100.0, FLOAT8: 1e12, INT4: 2.0**31 - 1, INT8: 2.0**62}
READING_COLUMN_TYPES = tuple(FLOAT8 if kind == PERCENT else kind for kind in READING_KINDS.values())
SAMPLE_COLUMNS = ("unit_id", "ts", "allocation_id", *READING_KINDS)
COPY_SAMPLES_SQL = f"COPY telemetry_sample ({', '.join(SAMPLE_COLUMNS)}) FROM STDIN (FORMAT BINARY)"

_row_values = attrgetter("ts", *READING_KINDS)
_MAX_VALUES = np.array([MAX_BY_KIND[kind] for kind in READING_KINDS.values()])
_IS_INTEGER = np.array([kind in (INT4, INT8) for kind in READING_KINDS.values()])
_INVALID_READING = -1.0  # stands for a reading that is no number, and is refused like every negative one
_POSTGRES_EPOCH_SECONDS = 946_684_800  # 2000-01-01 in seconds since 1970
_BINARY_FORMATS = {"int4": (">i4", 4), "int8": (">i8", 8), "float8": (">f8", 8)}
_COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
MAX_SAMPLE_AGE = timedelta(days=180)  # no sample is taken in that is older, whatever the retention
_TIMESTAMP_BITS = (
    44  # microseconds of 203 days, so that a unit's place and a moment fit into one sortable integer
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass
class IngestResult:
    """What one drain did."""

    batches: int = 0
    rows: int = 0
    rejected: int = 0
    doubled: int = 0


@dataclass
class _DecodedBatch:
    host: int
    sequence: int
    received: datetime
    names: list[str]
    index: Ints  # of the row's unit in names
    values: Floats  # ts and the readings of each row
    units: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # ids of the good rows' units
    rejected: int = 0


def encode_batch(host_id: int, batch: SampleBatch, received: datetime) -> dict[str, bytes]:
    """A batch as an entry of the stream."""
    names = sorted({row.unit for row in batch.rows})
    places = {name: place for place, name in enumerate(names)}
    rows = [_row_values(row) for row in batch.rows]
    values = np.array(rows, dtype="<f8").reshape(len(rows), ROW_WIDTH)
    for number in np.flatnonzero(np.isnan(values).any(axis=1)):
        # None and NaN look the same in the matrix: unknown is fine, not a number is not.
        for column, value in enumerate(rows[number]):
            if value is not None and math.isnan(value):
                values[number, column] = _INVALID_READING
    return {
        "host": str(host_id).encode(),
        "sequence": str(batch.sequence).encode(),
        "received": repr(received.timestamp()).encode(),
        "names": json.dumps(names).encode(),
        "index": np.array([places[row.unit] for row in batch.rows], dtype="<i4").tobytes(),
        "values": values.tobytes(),
    }


def drain_stream(stream: redis.Redis, now: datetime, *, most: int = 3_000) -> IngestResult:
    """Take what waits on the stream, at most about ``most`` batches, into the database; then delete it from the stream.

    Two drains at once do the same work twice and land it once. Raises what the database raises, and then nothing is deleted.
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
            [batch for _, fields in entries if (batch := _decode_batch(fields)) is not None], now, done
        )
        stream.xdel(SAMPLE_STREAM_KEY, *[name for name, _ in entries])
        taken += len(entries)
    return done


def _decode_batch(fields: dict[bytes, bytes]) -> _DecodedBatch | None:
    try:
        names = json.loads(fields[b"names"])
        index = np.frombuffer(fields[b"index"], dtype="<i4").astype(np.int64)
        values = np.frombuffer(fields[b"values"], dtype="<f8").reshape(len(index), ROW_WIDTH)
        if len(index) and not 0 <= index.min() <= index.max() < len(names):
            raise ValueError("a row names no unit")
        received = datetime.fromtimestamp(float(fields[b"received"]), UTC)
        return _DecodedBatch(int(fields[b"host"]), int(fields[b"sequence"]), received, names, index, values)
    except (KeyError, ValueError, TypeError) as error:
        log.warning("an entry of the stream %s is not a batch and is dropped: %r", SAMPLE_STREAM_KEY, error)
        return None


def _commit_batches(batches: Sequence[_DecodedBatch], now: datetime, done: IngestResult) -> None:
    known = set(Host.objects.filter(pk__in={batch.host for batch in batches}).values_list("pk", flat=True))
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
        fresh = _insert_new_batches(batches)
        done.doubled += len(batches) - len(fresh)
        if fresh:
            _copy_samples(fresh)
            mark_minutes_due(_minutes_to_roll_up(fresh), now)
            stray_processes.record_stray_counts(_stray_counts(fresh), now)
            _advance_watermarks({batch.host for batch in fresh}, now)
    done.batches += len(fresh)
    done.rows += sum(len(batch.units) for batch in fresh)
    done.rejected += sum(batch.rejected for batch in fresh)


def _sample_retention_days() -> int:
    return Retention.objects.filter(pk=1).values_list("sample_days", flat=True).first() or 14


def _unit_ids_by_host(hosts: Iterable[int]) -> dict[int, dict[str, int]]:
    """Unit ids by uuid for each host; of units that had the same uuid, the present one."""
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


def _drop_invalid_rows(batch: _DecodedBatch, own: dict[str, int], oldest: float, newest: float) -> None:
    """Leave only rows that can be true: of a unit of this host, not of the future, every reading within its bounds."""
    ids = np.array([own.get(name, -1) for name in batch.names] or [-1], dtype=np.int64)
    units = ids[batch.index] if len(batch.index) else np.empty(0, np.int64)
    moments, readings = batch.values[:, 0], batch.values[:, 1:]
    unknown = np.isnan(readings)
    with np.errstate(invalid="ignore"):
        sane = (readings >= 0) & (readings <= _MAX_VALUES) & (~_IS_INTEGER | (readings == np.floor(readings)))
    good = (units >= 0) & (moments >= oldest) & (moments <= newest) & (unknown | sane).all(axis=1)
    batch.rejected = len(batch.index) - int(good.sum())
    batch.units, batch.values = units[good], batch.values[good]


def _insert_new_batches(batches: Sequence[_DecodedBatch]) -> list[_DecodedBatch]:
    """The batches that had not landed yet; their Batch rows are written. One that another drain writes right now is waited for."""
    marks = SampleWatermark.objects.filter(host__in={batch.host for batch in batches})
    watermarks = dict(marks.values_list("host_id", "sequence"))
    first: dict[tuple[int, int], _DecodedBatch] = {}
    for batch in batches:
        if batch.sequence > watermarks.get(batch.host, 0):
            first.setdefault((batch.host, batch.sequence), batch)
    if not first:
        return []
    ordered = [first[key] for key in sorted(first)]
    columns = [(each.received, each.host, each.sequence, len(each.units), each.rejected) for each in ordered]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_batch (received_at, host_id, sequence, rows, rejected_rows)"
            " SELECT * FROM unnest(%s::timestamptz[], %s::bigint[], %s::bigint[], %s::int[], %s::int[])"
            " ON CONFLICT (host_id, sequence) DO NOTHING RETURNING host_id, sequence",
            [list(column) for column in zip(*columns, strict=True)],
        )
        landed = set(cursor.fetchall())
    return [first[key] for key in sorted(landed)]


def _copy_samples(batches: Sequence[_DecodedBatch]) -> None:
    units = np.concatenate([batch.units for batch in batches])
    values = np.concatenate([batch.values for batch in batches])
    if not len(units):
        return
    allocations = _allocations_at(units, values[:, 0])
    with connection.cursor() as cursor, cursor.copy(COPY_SAMPLES_SQL) as copy:
        copy.write(_COPY_SIGNATURE)
        for chunk in _binary_rows(units, allocations, values):
            copy.write(chunk)
        copy.write(b"\xff\xff")


def _allocations_at(units: Ints, moments: Floats) -> Ints:
    """The allocation that held each unit at each moment, 0 for nobody; from the rows of Allocation, in one search."""
    base = math.floor(float(moments.min()))
    low, high = (
        datetime.fromtimestamp(base, UTC),
        datetime.fromtimestamp(math.ceil(float(moments.max())), UTC),
    )
    distinct, places = np.unique(units, return_inverse=True)
    place_of = {unit: place for place, unit in enumerate(distinct.tolist())}
    rows = Allocation.objects.filter(
        unit__in=list(place_of), period__overlap=TimestamptzRange(low, high, "[]")
    )
    last = (1 << _TIMESTAMP_BITS) - 1
    holds = sorted(
        (
            place_of[unit],
            min(last, max(0, _microseconds_since(period.lower, base))),
            last if period.upper is None else _microseconds_since(period.upper, base),
            pk,
        )
        for unit, pk, period in rows.values_list("unit_id", "pk", "period")
    )
    found = np.zeros(len(units), np.int64)
    if not holds:
        return found
    table = np.array(holds, dtype=np.int64)
    after = np.round((moments - base) * 1e6).astype(np.int64)
    starts, wanted = (table[:, 0] << _TIMESTAMP_BITS) + table[:, 1], (places << _TIMESTAMP_BITS) + after
    before = np.searchsorted(starts, wanted, side="right") - 1
    hold = table[np.maximum(before, 0)]
    held = (before >= 0) & (hold[:, 0] == places) & (after < hold[:, 2])
    found[held] = hold[held, 3]
    return found


def _microseconds_since(moment: datetime, base: int) -> int:
    return round((moment.timestamp() - base) * 1_000_000)


def _binary_rows(units: Ints, allocations: Ints, values: Floats) -> Iterable[bytes]:
    """Rows in PostgreSQL's binary COPY format. Rows that are unknown in the same columns have the same shape and go together."""
    micros = np.round((values[:, 0] - _POSTGRES_EPOCH_SECONDS) * 1e6).astype(np.int64)
    missing = np.column_stack([allocations == 0, np.isnan(values[:, 1:])])
    shapes, shape_of = np.unique(missing, axis=0, return_inverse=True)
    for number, shape in enumerate(shapes):
        rows = np.flatnonzero(shape_of.reshape(-1) == number)
        kinds = ("int8", "int8", "int8", *READING_COLUMN_TYPES)
        columns = [units[rows], micros[rows], allocations[rows], *values[rows, 1:].T]
        absent = [False, False, *shape.tolist()]
        layout: list[tuple[str, str]] = [("fields", ">i2")]
        for place, (kind, is_absent) in enumerate(zip(kinds, absent, strict=True)):
            layout.append((f"length{place}", ">i4"))
            if not is_absent:
                layout.append((f"value{place}", _BINARY_FORMATS[kind][0]))
        block = np.zeros(len(rows), dtype=layout)
        block["fields"] = len(kinds)
        for place, (kind, is_absent, column) in enumerate(zip(kinds, absent, columns, strict=True)):
            block[f"length{place}"] = -1 if is_absent else _BINARY_FORMATS[kind][1]
            if not is_absent:
                block[f"value{place}"] = column
        yield block.tobytes()


def _minutes_to_roll_up(batches: Sequence[_DecodedBatch]) -> set[tuple[int, int]]:
    """(host, minute) of every sample, and of the seconds before it that it speaks for."""
    due: set[tuple[int, int]] = set()
    for batch in batches:
        moments = batch.values[:, 0]
        for shifted in (moments, moments - SAMPLE_REACH_SECONDS):
            due |= {(batch.host, int(minute) * 60) for minute in np.unique(shifted // 60)}
    return due


def mark_minutes_due(due: Iterable[tuple[int, int]], now: datetime) -> None:
    """Mark minutes ``(host id, seconds since the epoch)`` to be rolled up, also when they already were."""
    ordered = sorted(due)
    if not ordered:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_rollupdue (resolution, bucket, host_id, marked_at)"
            " SELECT %s, to_timestamp(v.minute), v.host, %s FROM unnest(%s::bigint[], %s::bigint[]) AS v (host, minute)"
            " ON CONFLICT (resolution, bucket, host_id) DO UPDATE SET marked_at = excluded.marked_at",
            [
                int(Rollup.Resolution.MINUTE),
                now,
                [host for host, _ in ordered],
                [minute for _, minute in ordered],
            ],
        )


def _stray_counts(batches: Sequence[_DecodedBatch]) -> dict[tuple[int, int], tuple[float, int]]:
    """Units with processes that belong to no allocation: (host, unit) to the last moment and count."""
    column = SAMPLE_COLUMNS.index("stray_processes") - 2
    seen: dict[tuple[int, int], tuple[float, int]] = {}
    for batch in batches:
        for row in np.flatnonzero(np.nan_to_num(batch.values[:, column]) > 0):
            key, moment = (batch.host, int(batch.units[row])), float(batch.values[row, 0])
            if key not in seen or seen[key][0] < moment:
                seen[key] = (moment, int(batch.values[row, column]))
    return seen


def _advance_watermarks(hosts: set[int], now: datetime) -> None:
    """Each host's watermark goes up to the first batch that is missing, and past one that has been missing too long."""
    ordered = sorted(hosts)
    SampleWatermark.objects.bulk_create(
        [SampleWatermark(host_id=host) for host in ordered], ignore_conflicts=True
    )
    with connection.cursor() as cursor:
        # The row locks of this UPDATE make two drains of one host count one after the other.
        cursor.execute(
            "UPDATE telemetry_samplewatermark SET sequence = sequence WHERE host_id = ANY(%s) RETURNING host_id, sequence",
            [ordered],
        )
        marks: dict[int, int] = dict(cursor.fetchall())
        cursor.execute(
            "SELECT b.host_id, b.sequence, b.received_at FROM telemetry_batch b"
            " JOIN telemetry_samplewatermark w ON w.host_id = b.host_id AND b.sequence > w.sequence"
            " WHERE b.host_id = ANY(%s) ORDER BY b.host_id, b.sequence",
            [ordered],
        )
        stuck: set[int] = set()
        for host, sequence, received in cursor.fetchall():
            if host in stuck or (sequence > marks[host] + 1 and now - received < MISSING_BATCH_TIMEOUT):
                stuck.add(host)
            else:
                marks[host] = sequence
        cursor.execute(
            "UPDATE telemetry_samplewatermark w SET sequence = v.sequence"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS v (host_id, sequence)"
            " WHERE w.host_id = v.host_id AND w.sequence < v.sequence",
            [list(marks), list(marks.values())],
        )


def prune_batches(now: datetime, *, days: int = 2) -> int:
    """Forget Batch rows below the watermark: the watermark alone refuses those now."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM {Batch._meta.db_table} b USING telemetry_samplewatermark w"
            " WHERE w.host_id = b.host_id AND b.sequence <= w.sequence AND b.received_at < %s",
            [now - timedelta(days=days)],
        )
        return int(cursor.rowcount)
