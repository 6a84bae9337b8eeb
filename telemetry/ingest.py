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
from telemetry import strays
from telemetry.core.rollup import REACH
from telemetry.models import Batch, Retention, Rollup, SampleWatermark

log = logging.getLogger(__name__)

STREAM = "gpupool:samples"
BATCHES_AT_ONCE = 500
FUTURE = timedelta(seconds=120)  # clocks may differ by this much
GAP_PATIENCE = timedelta(minutes=10)  # a batch that is missing this long will not come: its agent's spool was full

SMALL, BIG, REAL, PER_CENT = "int4", "int8", "float8", "per cent"
# The readings of a row on the stream, after its ts; agent.protocol.SampleRow says what they mean.
READINGS = {
    "utilisation": PER_CENT,
    "sm_active": PER_CENT,
    "tensor_active": PER_CENT,
    "memory_used_mib": SMALL,
    "memory_utilisation": PER_CENT,
    "power_w": REAL,
    "energy_mj": BIG,
    "temperature_c": REAL,
    "memory_temperature_c": REAL,
    "sm_clock_mhz": SMALL,
    "throttle_reasons": BIG,
    "pcie_rx_kib": BIG,
    "pcie_tx_kib": BIG,
    "nvlink_kib": BIG,
    "processes": SMALL,
    "stray_processes": SMALL,
}
WIDTH = 1 + len(READINGS)
LARGEST = {PER_CENT: 100.0, REAL: 1e12, SMALL: 2.0**31 - 1, BIG: 2.0**62}
TYPES = tuple(REAL if kind == PER_CENT else kind for kind in READINGS.values())
COLUMNS = ("unit_id", "ts", "allocation_id", *READINGS)
COPY = f"COPY telemetry_sample ({', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"

_values_of = attrgetter("ts", *READINGS)
_LIMITS = np.array([LARGEST[kind] for kind in READINGS.values()])
_WHOLE = np.array([kind in (SMALL, BIG) for kind in READINGS.values()])
_REFUSED = -1.0  # stands for a reading that is no number, and is refused like every negative one
_POSTGRES_EPOCH = 946_684_800  # 2000-01-01 in seconds since 1970
_BINARY = {"int4": (">i4", 4), "int8": (">i8", 8), "float8": (">f8", 8)}
_SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
LATEST = timedelta(days=180)  # no sample is taken in that is older, whatever the retention
_MOMENT_BITS = 44  # microseconds of 203 days, so that a unit's place and a moment fit into one sortable integer

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass
class Ingested:
    """What one drain did."""

    batches: int = 0
    rows: int = 0
    rejected: int = 0
    doubled: int = 0


@dataclass
class _Batch:
    host: int
    sequence: int
    received: datetime
    names: list[str]
    index: Ints  # of the row's unit in names
    values: Floats  # ts and the readings of each row
    units: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # ids of the good rows' units
    rejected: int = 0


def entry_of(host_id: int, batch: SampleBatch, received: datetime) -> dict[str, bytes]:
    """A batch as an entry of the stream."""
    names = sorted({row.unit for row in batch.rows})
    places = {name: place for place, name in enumerate(names)}
    rows = [_values_of(row) for row in batch.rows]
    values = np.array(rows, dtype="<f8").reshape(len(rows), WIDTH)
    for number in np.flatnonzero(np.isnan(values).any(axis=1)):
        # None and NaN look the same in the matrix: unknown is fine, not a number is not.
        for column, value in enumerate(rows[number]):
            if value is not None and math.isnan(value):
                values[number, column] = _REFUSED
    return {
        "host": str(host_id).encode(),
        "sequence": str(batch.sequence).encode(),
        "received": repr(received.timestamp()).encode(),
        "names": json.dumps(names).encode(),
        "index": np.array([places[row.unit] for row in batch.rows], dtype="<i4").tobytes(),
        "values": values.tobytes(),
    }


def drain(stream: redis.Redis, now: datetime, *, most: int = 3_000) -> Ingested:
    """Take what waits on the stream, at most about ``most`` batches, into the database; then delete it from the stream.

    Two drains at once do the same work twice and land it once. Raises what the database raises, and then nothing is deleted.
    """
    done = Ingested()
    taken = 0
    while taken < most:
        entries: list[tuple[bytes, dict[bytes, bytes]]] = stream.xrange(STREAM, count=BATCHES_AT_ONCE)  # type: ignore[assignment]
        if not entries:
            break
        _commit([batch for _, fields in entries if (batch := _read(fields)) is not None], now, done)
        stream.xdel(STREAM, *[name for name, _ in entries])
        taken += len(entries)
    return done


def _read(fields: dict[bytes, bytes]) -> _Batch | None:
    try:
        names = json.loads(fields[b"names"])
        index = np.frombuffer(fields[b"index"], dtype="<i4").astype(np.int64)
        values = np.frombuffer(fields[b"values"], dtype="<f8").reshape(len(index), WIDTH)
        if len(index) and not 0 <= index.min() <= index.max() < len(names):
            raise ValueError("a row names no unit")
        received = datetime.fromtimestamp(float(fields[b"received"]), UTC)
        return _Batch(int(fields[b"host"]), int(fields[b"sequence"]), received, names, index, values)
    except (KeyError, ValueError, TypeError) as error:
        log.warning("an entry of the stream %s is not a batch and is dropped: %r", STREAM, error)
        return None


def _commit(batches: Sequence[_Batch], now: datetime, done: Ingested) -> None:
    known = set(Host.objects.filter(pk__in={batch.host for batch in batches}).values_list("pk", flat=True))
    batches = [batch for batch in batches if batch.host in known]
    if not batches:
        return
    oldest = now - min(LATEST, timedelta(days=_sample_days()))
    units = _units_of(known)
    for batch in batches:
        _keep_good_rows(batch, units[batch.host], oldest.timestamp(), (now + FUTURE).timestamp())
    with transaction.atomic():
        fresh = _claim(batches)
        done.doubled += len(batches) - len(fresh)
        if fresh:
            _copy(fresh)
            mark_due(_minutes_of(fresh), now)
            strays.report(_strays_of(fresh), now)
            _move_watermarks({batch.host for batch in fresh}, now)
    done.batches += len(fresh)
    done.rows += sum(len(batch.units) for batch in fresh)
    done.rejected += sum(batch.rejected for batch in fresh)


def _sample_days() -> int:
    return Retention.objects.filter(pk=1).values_list("sample_days", flat=True).first() or 14


def _units_of(hosts: Iterable[int]) -> dict[int, dict[str, int]]:
    """Unit ids by uuid for each host; of units that had the same uuid, the present one."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    rows = Unit.objects.filter(gpu__host__in=hosts).order_by("pk").values_list("gpu__host_id", "uuid", "pk", "retired_at")
    for host, uuid, pk, retired in rows:
        if retired is None or uuid not in found[host]:
            found[host][uuid] = pk
    return found


def _keep_good_rows(batch: _Batch, own: dict[str, int], oldest: float, newest: float) -> None:
    """Leave only rows that can be true: of a unit of this host, not of the future, every reading within its bounds."""
    ids = np.array([own.get(name, -1) for name in batch.names] or [-1], dtype=np.int64)
    units = ids[batch.index] if len(batch.index) else np.empty(0, np.int64)
    moments, readings = batch.values[:, 0], batch.values[:, 1:]
    unknown = np.isnan(readings)
    with np.errstate(invalid="ignore"):
        sane = (readings >= 0) & (readings <= _LIMITS) & (~_WHOLE | (readings == np.floor(readings)))
    good = (units >= 0) & (moments >= oldest) & (moments <= newest) & (unknown | sane).all(axis=1)
    batch.rejected = len(batch.index) - int(good.sum())
    batch.units, batch.values = units[good], batch.values[good]


def _claim(batches: Sequence[_Batch]) -> list[_Batch]:
    """The batches that had not landed yet; their Batch rows are written. One that another drain writes right now is waited for."""
    marks = SampleWatermark.objects.filter(host__in={batch.host for batch in batches})
    watermarks = dict(marks.values_list("host_id", "sequence"))
    first: dict[tuple[int, int], _Batch] = {}
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


def _copy(batches: Sequence[_Batch]) -> None:
    units = np.concatenate([batch.units for batch in batches])
    values = np.concatenate([batch.values for batch in batches])
    if not len(units):
        return
    allocations = _holders(units, values[:, 0])
    with connection.cursor() as cursor, cursor.copy(COPY) as copy:
        copy.write(_SIGNATURE)
        for chunk in _binary_rows(units, allocations, values):
            copy.write(chunk)
        copy.write(b"\xff\xff")


def _holders(units: Ints, moments: Floats) -> Ints:
    """The allocation that held each unit at each moment, 0 for nobody; from the rows of Allocation, in one search."""
    base = math.floor(float(moments.min()))
    low, high = datetime.fromtimestamp(base, UTC), datetime.fromtimestamp(math.ceil(float(moments.max())), UTC)
    distinct, places = np.unique(units, return_inverse=True)
    place_of = {unit: place for place, unit in enumerate(distinct.tolist())}
    rows = Allocation.objects.filter(unit__in=list(place_of), period__overlap=TimestamptzRange(low, high, "[]"))
    last = (1 << _MOMENT_BITS) - 1
    holds = sorted(
        (
            place_of[unit],
            min(last, max(0, _micros(period.lower, base))),
            last if period.upper is None else _micros(period.upper, base),
            pk,
        )
        for unit, pk, period in rows.values_list("unit_id", "pk", "period")
    )
    found = np.zeros(len(units), np.int64)
    if not holds:
        return found
    table = np.array(holds, dtype=np.int64)
    after = np.round((moments - base) * 1e6).astype(np.int64)
    starts, wanted = (table[:, 0] << _MOMENT_BITS) + table[:, 1], (places << _MOMENT_BITS) + after
    before = np.searchsorted(starts, wanted, side="right") - 1
    hold = table[np.maximum(before, 0)]
    held = (before >= 0) & (hold[:, 0] == places) & (after < hold[:, 2])
    found[held] = hold[held, 3]
    return found


def _micros(moment: datetime, base: int) -> int:
    return round((moment.timestamp() - base) * 1_000_000)


def _binary_rows(units: Ints, allocations: Ints, values: Floats) -> Iterable[bytes]:
    """Rows in PostgreSQL's binary COPY format. Rows that are unknown in the same columns have the same shape and go together."""
    micros = np.round((values[:, 0] - _POSTGRES_EPOCH) * 1e6).astype(np.int64)
    missing = np.column_stack([allocations == 0, np.isnan(values[:, 1:])])
    shapes, shape_of = np.unique(missing, axis=0, return_inverse=True)
    for number, shape in enumerate(shapes):
        rows = np.flatnonzero(shape_of.reshape(-1) == number)
        kinds = ("int8", "int8", "int8", *TYPES)
        columns = [units[rows], micros[rows], allocations[rows], *values[rows, 1:].T]
        absent = [False, False, *shape.tolist()]
        layout: list[tuple[str, str]] = [("fields", ">i2")]
        for place, (kind, is_absent) in enumerate(zip(kinds, absent, strict=True)):
            layout.append((f"length{place}", ">i4"))
            if not is_absent:
                layout.append((f"value{place}", _BINARY[kind][0]))
        block = np.zeros(len(rows), dtype=layout)
        block["fields"] = len(kinds)
        for place, (kind, is_absent, column) in enumerate(zip(kinds, absent, columns, strict=True)):
            block[f"length{place}"] = -1 if is_absent else _BINARY[kind][1]
            if not is_absent:
                block[f"value{place}"] = column
        yield block.tobytes()


def _minutes_of(batches: Sequence[_Batch]) -> set[tuple[int, int]]:
    """(host, minute) of every sample, and of the seconds before it that it speaks for."""
    due: set[tuple[int, int]] = set()
    for batch in batches:
        moments = batch.values[:, 0]
        for shifted in (moments, moments - REACH):
            due |= {(batch.host, int(minute) * 60) for minute in np.unique(shifted // 60)}
    return due


def mark_due(due: Iterable[tuple[int, int]], now: datetime) -> None:
    """Mark minutes ``(host id, seconds since the epoch)`` to be rolled up, also when they already were."""
    ordered = sorted(due)
    if not ordered:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_rollupdue (resolution, bucket, host_id, marked_at)"
            " SELECT %s, to_timestamp(v.minute), v.host, %s FROM unnest(%s::bigint[], %s::bigint[]) AS v (host, minute)"
            " ON CONFLICT (resolution, bucket, host_id) DO UPDATE SET marked_at = excluded.marked_at",
            [int(Rollup.Resolution.MINUTE), now, [host for host, _ in ordered], [minute for _, minute in ordered]],
        )


def _strays_of(batches: Sequence[_Batch]) -> dict[tuple[int, int], tuple[float, int]]:
    """Units with processes that belong to no allocation: (host, unit) to the last moment and count."""
    column = COLUMNS.index("stray_processes") - 2
    seen: dict[tuple[int, int], tuple[float, int]] = {}
    for batch in batches:
        for row in np.flatnonzero(np.nan_to_num(batch.values[:, column]) > 0):
            key, moment = (batch.host, int(batch.units[row])), float(batch.values[row, 0])
            if key not in seen or seen[key][0] < moment:
                seen[key] = (moment, int(batch.values[row, column]))
    return seen


def _move_watermarks(hosts: set[int], now: datetime) -> None:
    """Each host's watermark goes up to the first batch that is missing, and past one that has been missing too long."""
    ordered = sorted(hosts)
    SampleWatermark.objects.bulk_create([SampleWatermark(host_id=host) for host in ordered], ignore_conflicts=True)
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
            if host in stuck or (sequence > marks[host] + 1 and now - received < GAP_PATIENCE):
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
