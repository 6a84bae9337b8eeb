"""Batches from the stream into samples: one COPY and one Batch row per batch, in the same transaction.

A batch that came twice lands once (the Batch row is unique); one that came late lands in its own bucket, which is marked to be
rolled up again. What Redis loses, the agent sends again: it deletes only up to the watermark, which follows the commits.
"""

from __future__ import annotations

import json
import logging
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from django.db import connection, transaction
from psycopg.types.range import TimestamptzRange

from scheduler.models import Allocation, Host, Unit
from telemetry import strays
from telemetry.models import Batch, Retention, Rollup, SampleWatermark

log = logging.getLogger(__name__)

STREAM = "gpupool:samples"
BATCHES_AT_ONCE = 200
FUTURE = timedelta(seconds=120)  # clocks may differ by this much
GAP_PATIENCE = timedelta(minutes=10)  # a batch that is missing this long will not come: its agent's spool was full

# The fields of a row on the stream, in order: agent.protocol.SampleRow says what they mean.
FIELDS = (
    "unit",
    "ts",
    "utilisation",
    "sm_active",
    "tensor_active",
    "memory_used_mib",
    "memory_utilisation",
    "power_w",
    "energy_mj",
    "temperature_c",
    "memory_temperature_c",
    "sm_clock_mhz",
    "throttle_reasons",
    "pcie_rx_kib",
    "pcie_tx_kib",
    "nvlink_kib",
    "processes",
    "stray_processes",
)
READINGS = FIELDS[2:]
SMALL, BIG, REAL = "int4", "int8", "float8"
TYPES = (REAL, REAL, REAL, SMALL, REAL, REAL, BIG, REAL, REAL, SMALL, BIG, BIG, BIG, BIG, SMALL, SMALL)
LARGEST = {SMALL: 2**31, BIG: 2**63, REAL: math.inf}
PER_CENT = frozenset({"utilisation", "sm_active", "tensor_active", "memory_utilisation"})
COPY = f"COPY telemetry_sample (unit_id, ts, allocation_id, {', '.join(READINGS)}) FROM STDIN (FORMAT BINARY)"


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
    rows: list[list[Any]]
    good: list[tuple[Any, ...]] = field(default_factory=list)
    rejected: int = 0


def drain(stream: redis.Redis, now: datetime, *, most: int = 2_000) -> Ingested:
    """Take what waits on the stream, at most about ``most`` batches, into the database; then delete it from the stream.

    Two drains at once do the same work twice and land it once. Raises what the database raises, and then nothing is deleted.
    """
    done = Ingested()
    while done.batches + done.doubled < most:
        entries: list[tuple[bytes, dict[bytes, bytes]]] = stream.xrange(STREAM, count=BATCHES_AT_ONCE)  # type: ignore[assignment]
        if not entries:
            break
        batches = [batch for _, fields in entries if (batch := _read(fields)) is not None]
        _commit(batches, now, done)
        stream.xdel(STREAM, *[name for name, _ in entries])
        if len(entries) < BATCHES_AT_ONCE:
            break
    return done


def _read(fields: dict[bytes, bytes]) -> _Batch | None:
    try:
        return _Batch(
            host=int(fields[b"host"]),
            sequence=int(fields[b"sequence"]),
            received=datetime.fromtimestamp(float(fields[b"received"]), UTC),
            rows=json.loads(fields[b"rows"]),
        )
    except (KeyError, ValueError) as error:
        log.warning("an entry of the stream %s is not a batch and is dropped: %r", STREAM, error)
        return None


def _commit(batches: Sequence[_Batch], now: datetime, done: Ingested) -> None:
    known = set(Host.objects.filter(pk__in={batch.host for batch in batches}).values_list("pk", flat=True))
    batches = [batch for batch in batches if batch.host in known]
    if not batches:
        return
    oldest = now - timedelta(days=_sample_days())
    units = _units_of(known)
    for batch in batches:
        _check_rows(batch, units, oldest, now + FUTURE)
    with transaction.atomic():
        fresh = _claim(batches, now)
        done.doubled += len(batches) - len(fresh)
        holders = _Holders([row for batch in fresh for row in batch.good])
        _copy(fresh, holders)
        _mark_due(fresh, now)
        strays.report(_strays_of(fresh), now)
        _move_watermarks({batch.host for batch in fresh}, now)
    done.batches += len(fresh)
    done.rows += sum(len(batch.good) for batch in fresh)
    done.rejected += sum(batch.rejected for batch in fresh)


def _sample_days() -> int:
    return Retention.objects.filter(pk=1).values_list("sample_days", flat=True).first() or 14


def _units_of(hosts: Iterable[int]) -> dict[int, dict[str, int]]:
    """Unit ids by uuid for each host; of units that had the same uuid, the present one."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    rows = (
        Unit.objects.filter(gpu__host__in=hosts).order_by("pk").values_list("gpu__host_id", "uuid", "pk", "retired_at")
    )
    for host, uuid, pk, retired in rows:
        if retired is None or uuid not in found[host]:
            found[host][uuid] = pk
    return found


def _check_rows(batch: _Batch, units: dict[int, dict[str, int]], oldest: datetime, newest: datetime) -> None:
    """Sort the rows into good ones ``(unit, seconds, *readings)`` and rejected ones, which are counted."""
    own, low, high = units[batch.host], oldest.timestamp(), newest.timestamp()
    width = len(FIELDS)
    good = batch.good
    for row in batch.rows:
        if not isinstance(row, list) or len(row) != width or not isinstance(row[0], str):
            continue
        unit, ts = own.get(row[0]), row[1]
        if unit is None or not isinstance(ts, (int, float)) or not low <= ts <= high or not _readings_are_sane(row):
            continue
        good.append((unit, float(ts), *row[2:]))
    batch.rejected = len(batch.rows) - len(good)


_CHECKS = tuple(
    (index, name in PER_CENT, float(LARGEST[kind]), kind == REAL)
    for index, (name, kind) in enumerate(zip(READINGS, TYPES, strict=True), start=2)
)


def _readings_are_sane(row: Sequence[Any]) -> bool:
    for index, per_cent, largest, real in _CHECKS:
        value = row[index]
        if value is None:
            continue
        if type(value) is not int and not (real and type(value) is float):
            return False
        # Written so that NaN, which compares false with everything, is refused too.
        if not 0 <= value <= (100 if per_cent else largest) or value == largest:
            return False
    return True


def _claim(batches: Sequence[_Batch], now: datetime) -> list[_Batch]:
    """The batches that had not landed yet; their Batch rows are written. One that another drain writes right now is waited for."""
    watermarks = dict(
        SampleWatermark.objects.filter(host__in={b.host for b in batches}).values_list("host_id", "sequence")
    )
    first: dict[tuple[int, int], _Batch] = {}
    for batch in batches:
        if batch.sequence > watermarks.get(batch.host, 0):
            first.setdefault((batch.host, batch.sequence), batch)
    if not first:
        return []
    ordered = [first[key] for key in sorted(first)]
    columns = [(batch.host, batch.sequence, len(batch.good), batch.rejected) for batch in ordered]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_batch (host_id, sequence, rows, rejected_rows, received_at)"
            " SELECT v.*, %s FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::int[]) AS v"
            " ON CONFLICT (host_id, sequence) DO NOTHING RETURNING host_id, sequence",
            [now, *(list(column) for column in zip(*columns, strict=True))],
        )
        landed = set(cursor.fetchall())
    return [first[key] for key in sorted(landed)]


class _Holders:
    """Which allocation held a unit at a moment, from the rows of Allocation."""

    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self._starts: dict[int, list[float]] = {}
        self._holds: dict[int, list[tuple[float, int]]] = {}
        if not rows:
            return
        low = datetime.fromtimestamp(min(row[1] for row in rows), UTC)
        high = datetime.fromtimestamp(max(row[1] for row in rows), UTC)
        period = TimestamptzRange(low, high, "[]")
        found = Allocation.objects.filter(unit__in={row[0] for row in rows}, period__overlap=period)
        by_unit: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
        for unit, pk, held in found.values_list("unit_id", "pk", "period"):
            end = math.inf if held.upper is None else held.upper.timestamp()
            by_unit[unit].append((held.lower.timestamp(), end, pk))
        for unit, holds in by_unit.items():
            holds.sort()
            self._starts[unit] = [hold[0] for hold in holds]
            self._holds[unit] = [(hold[1], hold[2]) for hold in holds]

    def at(self, unit: int, moment: float) -> int | None:
        """The id of the allocation, or None for nobody."""
        starts = self._starts.get(unit)
        if starts is None:
            return None
        index = bisect_right(starts, moment) - 1
        if index < 0:
            return None
        end, allocation = self._holds[unit][index]
        return allocation if moment < end else None


def _copy(batches: Sequence[_Batch], holders: _Holders) -> None:
    with connection.cursor() as cursor, cursor.copy(COPY) as copy:
        copy.set_types(["int8", "timestamptz", "int8", *TYPES])
        for batch in batches:
            for row in batch.good:
                unit, ts = row[0], row[1]
                copy.write_row((unit, datetime.fromtimestamp(ts, UTC), holders.at(unit, ts), *_typed(row)))


def _typed(row: Sequence[Any]) -> Iterable[Any]:
    # JSON writes 5.0 as 5.0 but people write 5: a whole number in a column of real ones becomes one.
    return (
        float(value) if kind == REAL and type(value) is int else value
        for value, kind in zip(row[2:], TYPES, strict=True)
    )


def _mark_due(batches: Sequence[_Batch], now: datetime) -> None:
    """Every minute that got a sample has to be rolled up; the last seconds of the minute before, too."""
    due: set[tuple[int, int]] = set()
    for batch in batches:
        for row in batch.good:
            minute = int(row[1] // 60) * 60
            due.add((batch.host, minute))
            if row[1] - minute < 30:
                due.add((batch.host, minute - 60))
    mark_due(due, now)


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
    column = 2 + READINGS.index("stray_processes")
    seen: dict[tuple[int, int], tuple[float, int]] = {}
    for batch in batches:
        for row in batch.good:
            if row[column]:
                key = (batch.host, row[0])
                if key not in seen or seen[key][0] < row[1]:
                    seen[key] = (row[1], row[column])
    return seen


def _move_watermarks(hosts: Iterable[int], now: datetime) -> None:
    for host in sorted(hosts):
        SampleWatermark.objects.get_or_create(host_id=host)
        # The row lock of this UPDATE makes two drains of one host count one after the other.
        SampleWatermark.objects.filter(host=host).update(
            sequence=SampleWatermark.objects.filter(host=host).values("sequence")
        )
        mark = SampleWatermark.objects.get(host=host).sequence
        landed = Batch.objects.filter(host=host, sequence__gt=mark).order_by("sequence")
        new = mark
        for sequence, received in landed.values_list("sequence", "received_at"):
            if sequence > new + 1 and now - received < GAP_PATIENCE:
                break
            new = sequence
        if new != mark:
            SampleWatermark.objects.filter(host=host).update(sequence=new)


def prune_batches(now: datetime, *, days: int = 2) -> int:
    """Forget Batch rows below the watermark: the watermark alone refuses those now."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM telemetry_batch b USING telemetry_samplewatermark w"
            " WHERE w.host_id = b.host_id AND b.sequence <= w.sequence AND b.received_at < %s",
            [now - timedelta(days=days)],
        )
        return int(cursor.rowcount)
