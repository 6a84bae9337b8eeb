"""Pack the samples of past days: one row per unit and hour, with a compressed array per column.

A day is packed PACK_AFTER after its end, if no host is expected to send more of its samples. A step moves the
samples of some units: it deletes their single rows and writes the packed rows in one transaction. When no
single row is left, the partition of the day is dropped. Late samples of a packed day are stored as single
rows like all others, and a later step adds them to the packed rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
from django.db import connection, transaction

from telemetry.binary_columns import read_columns
from telemetry.models import HostHour, sample_bins
from telemetry.samples.codec import encode_integers, encode_reals
from telemetry.samples.columns import COLUMN_KINDS, REAL
from telemetry.samples.packed_locks import lock_packed_samples
from telemetry.samples.stored import (
    Columns,
    Ints,
    packed_columns,
    packed_kinds,
    packed_rows_sql,
    single_columns,
    single_kinds,
    single_rows_sql,
    sorted_samples,
)
from telemetry.sql_values import array_text, time_array_text, time_of

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
HOUR_MICROS = 3_600_000_000
# Pages of the present and alerts read single rows only. They look back at most one day.
PACK_AFTER = timedelta(days=1)
# A host that has not sent its samples by then does not delay the others any more.
LONGEST_WAIT = timedelta(days=3)
UNITS_PER_STEP = 8
_NAMES = tuple(COLUMN_KINDS)
_DAY_SQL = f"ts >= %(start)s AND ts < %(end)s AND {sample_bins('ts', '%(start)s', '%(end)s')}"
_UNITS_SQL = f"""
SELECT unit.id FROM scheduler_unit AS unit WHERE unit.id > %(after)s AND EXISTS (
    SELECT FROM telemetry_sample WHERE unit_id = unit.id AND {_DAY_SQL})
ORDER BY unit.id LIMIT {UNITS_PER_STEP}
"""
# Exactly the deleted rows are read: rows that are added at the same time stay.
_TAKE_SQL = f"""
WITH taken AS (
    DELETE FROM telemetry_sample WHERE unit_id = ANY(%(units)s::bigint[]) AND {_DAY_SQL} RETURNING *
)
SELECT {single_rows_sql(_NAMES)} FROM taken
"""
_PACKED_SQL = f"""
SELECT {packed_rows_sql(_NAMES)} FROM telemetry_packedsamples
WHERE unit_id = ANY(%(units)s::bigint[]) AND hour >= %(start)s AND hour < %(end)s
"""
_DELETE_PACKED_SQL = """
DELETE FROM telemetry_packedsamples AS packed
USING unnest(%s::bigint[], %s::timestamptz[]) AS old (unit, hour)
WHERE packed.unit_id = old.unit AND packed.hour = old.hour AND packed.hour >= %s AND packed.hour < %s
"""
_COPY_SQL = f"""
COPY telemetry_packedsamples (hour, unit_id, samples, ts, {", ".join(_NAMES)}) FROM STDIN (FORMAT BINARY)
"""
_COPY_TYPES = ["timestamptz", "int8", "int4", "bytea", *("bytea" for _ in _NAMES)]


@dataclass
class PackResult:
    """The numbers of samples that were packed, and of days whose single rows were dropped."""

    samples: int = 0
    days: int = 0


def pack_samples(now: datetime, *, steps: int | None = None) -> PackResult:
    """Pack the samples of past days in at most ``steps`` steps; None means no limit."""
    done = PackResult()
    left = math.inf if steps is None else steps
    for day in _days_to_pack(now):
        after = 0
        while left > 0:
            units = _units_with_samples(day, after)
            if units:
                done.samples += _pack(day, units)
                after, left = units[-1], left - 1
            elif after:  # look again for samples that were late
                after = 0
            else:
                done.days += _drop_partition(day)
                break
    return done


def _days_to_pack(now: datetime) -> list[date]:
    """Return the past days with single rows that may be packed, in order."""
    last = (now - PACK_AFTER).astimezone(UTC).date()
    with connection.cursor() as cursor:
        cursor.execute("SELECT day FROM telemetry_days_of_samples(%s) AS day ORDER BY day", [last])
        days: list[date] = [day for (day,) in cursor.fetchall()]
    return [day for day in days if _is_complete(day, now)]


def _is_complete(day: date, now: datetime) -> bool:
    """Return True if no host is expected to send more samples of the day."""
    start, end = day_period(day)
    if now - end >= LONGEST_WAIT:
        return True
    waiting = HostHour.objects.filter(hour__gte=start, hour__lt=end, state=HostHour.State.WAITING)
    return not waiting.exists()


def _units_with_samples(day: date, after: int) -> list[int]:
    """Return the first units with single rows of the day whose ids are greater than ``after``."""
    start, end = day_period(day)
    with connection.cursor() as cursor:
        cursor.execute(_UNITS_SQL, {"start": start, "end": end, "after": after})
        return [unit for (unit,) in cursor.fetchall()]


def _pack(day: date, units: Sequence[int]) -> int:
    """Move the samples of these units to their packed rows. Return the number of single rows."""
    ids = np.array(units, np.int64)
    start, end = day_period(day)
    values = {"units": array_text(units), "start": start, "end": end}
    with transaction.atomic():
        lock_packed_samples()
        with connection.cursor() as cursor:
            cursor.execute("SELECT telemetry_make_packed_partition(%s)", [day])
        taken = single_columns(_NAMES, ids, read_columns(_TAKE_SQL, values, single_kinds(_NAMES)))
        stored = load_packed(ids, start, end)
        earlier = np.isin(unit_hours(stored), np.unique(unit_hours(taken)))
        columns = {name: np.concatenate([stored[name][earlier], taken[name]]) for name in taken}
        write_packed(ids, sorted_samples(columns))
    return len(taken["ts"])


def load_packed(units: Ints, start: datetime, end: datetime) -> Columns:
    """Return all columns of the packed samples of the units in the hours of ``[start, end)``."""
    values = {"units": array_text(units.tolist()), "start": start, "end": end}
    return packed_columns(_NAMES, units, read_columns(_PACKED_SQL, values, packed_kinds(_NAMES)))


def write_packed(units: Ints, columns: Columns) -> None:
    """Write the packed rows of the units and hours that ``columns`` contains. Earlier ones are replaced.

    ``columns`` has all samples of each of these hours, sorted by unit and time. The hours are in one day.
    Call this in a transaction that has locked the packed samples.
    """
    key = unit_hours(columns)
    firsts = np.flatnonzero(np.diff(key, prepend=-1))
    ends = np.append(firsts[1:], len(key))
    hours = [time_of(int(at) // HOUR_MICROS * HOUR_MICROS) for at in columns["ts"][firsts].tolist()]
    of_rows = units[columns["unit"][firsts]].tolist()
    if not hours:
        return
    with connection.cursor() as cursor:
        period = [min(hours), max(hours) + HOUR]
        cursor.execute(_DELETE_PACKED_SQL, [array_text(of_rows), time_array_text(hours), *period])
        with cursor.copy(_COPY_SQL) as copy:
            copy.set_types(_COPY_TYPES)
            for unit, hour, first, end in zip(of_rows, hours, firsts.tolist(), ends.tolist(), strict=True):
                part = [_encoded(name, columns[name][first:end]) for name in _NAMES]
                copy.write_row((hour, unit, end - first, encode_integers(columns["ts"][first:end]), *part))


def _encoded(name: str, values: np.ndarray) -> bytes | None:
    return encode_reals(values) if COLUMN_KINDS[name] == REAL else encode_integers(values)


def unit_hours(columns: Columns) -> Ints:
    """Return a number for the unit and the hour of each sample."""
    hours = 1 << 24  # 24 bits are enough for the hours of 1900 years
    key: Ints = columns["unit"] * hours + columns["ts"] // HOUR_MICROS
    return key


def _drop_partition(day: date) -> bool:
    """Drop the partition of the day's single rows if it exists and has no rows."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT telemetry_drop_empty_samples(%s)", [day])
        return bool(cursor.fetchone()[0])


def day_period(day: date) -> tuple[datetime, datetime]:
    """Return the start and the end of a day in UTC."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return start, start + DAY
