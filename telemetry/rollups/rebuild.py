"""Compute the rollups of a past period again from its samples, and compare them with the stored ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection, transaction

from telemetry.core.rollup import SAMPLE_REACH_SECONDS
from telemetry.models import Retention, Rollup, sample_bins
from telemetry.rollups.due_marks import bucket_start, mark_hours_due, mark_minutes_due
from telemetry.rollups.roll_up import roll_up_due_buckets
from telemetry.rollups.storage import ROLLUP_MEASURES, rollup_condition

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
HOSTS_AT_ONCE = 100
_HOSTS_SQL = f"""
SELECT DISTINCT gpu.host_id FROM scheduler_unit AS unit JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id
WHERE EXISTS (SELECT FROM telemetry_sample AS sample
        WHERE sample.unit_id = unit.id AND sample.ts >= %(start)s AND sample.ts < %(reached)s
            AND {sample_bins("sample.ts", "%(start)s", "%(reached)s")})
    OR EXISTS (SELECT FROM telemetry_packedsamples AS packed
        WHERE packed.unit_id = unit.id AND packed.hour >= %(start)s AND packed.hour < %(reached)s)
    OR EXISTS (SELECT FROM scheduler_allocation AS held
        WHERE held.unit_id = unit.id AND held.period && tstzrange(%(start)s, %(end)s))
ORDER BY gpu.host_id
"""
_VALUES = ", ".join(f"coalesce({name}::text, '-')" for name in ROLLUP_MEASURES)
_ROWS_SQL = f"""
SELECT resolution, bucket, unit_id, allocation_id,
    hashtextextended(concat_ws(',', simulated, {_VALUES}), 0)
FROM telemetry_rollup WHERE {{buckets}} AND unit_id = ANY(%s::bigint[])
"""


_DROPPED_SQL = """
SELECT max(day) FROM generate_series(%s::timestamptz, %s::timestamptz, interval '1 day') AS day
WHERE NOT EXISTS (SELECT FROM telemetry_sample WHERE ts >= day AND ts < day + interval '1 day')
    AND NOT EXISTS (SELECT FROM telemetry_packedsamples WHERE hour >= day AND hour < day + interval '1 day')
    AND EXISTS (SELECT FROM telemetry_rolluphours WHERE container = day
        AND (SELECT sum(covered) FROM unnest(covered_seconds) AS covered) > 0)
"""


@dataclass
class RebuildResult:
    """The numbers of rollups of the period, and of rollups that differ from the stored ones."""

    rollups: int = 0
    differences: int = 0

    def add(self, other: RebuildResult) -> None:
        """Add the numbers of another result."""
        self.rollups += other.rollups
        self.differences += other.differences


def rebuild_rollups(
    start: datetime, end: datetime, now: datetime
) -> Iterator[tuple[datetime, RebuildResult]]:
    """Roll up the hours in ``[start, end)`` again, and their days. Yield each day (UTC) and its result.

    The times must be whole hours. The rollups of a unit are kept if its samples no longer exist. Raises
    ValueError.
    """
    check_period(start, end, now)
    day = bucket_start(start, Rollup.Resolution.DAY)
    while day < end:
        done = RebuildResult()
        hours = [day + n * HOUR for n in range(24) if start <= day + n * HOUR < end]
        before = _stored(Rollup.Resolution.DAY, day, day + DAY, _units(_hosts(day, day + DAY)))
        for hour in hours:
            hosts = _hosts(hour, hour + HOUR)
            for at in range(0, len(hosts), HOSTS_AT_ONCE):
                done.add(_rebuild_hour(hour, hosts[at : at + HOSTS_AT_ONCE], now))
        roll_up_due_buckets(now)
        after = _stored(Rollup.Resolution.DAY, day, day + DAY, _units(_hosts(day, day + DAY)))
        done.add(_compare(before, after))
        yield day, done
        day += DAY


def check_period(start: datetime, end: datetime, now: datetime) -> None:
    """Raise ValueError if the hours in ``[start, end)`` cannot be rebuilt."""
    for name, moment in (("from", start), ("to", end)):
        if moment != bucket_start(moment, Rollup.Resolution.HOUR):
            raise ValueError(f"{name} is {moment.isoformat()}; allowed: the start of an hour.")
    if start >= end:
        raise ValueError(f"to is {end.isoformat()}; allowed: after from, {start.isoformat()}.")
    last = bucket_start(now, Rollup.Resolution.HOUR)
    if end > last:
        raise ValueError(f"to is {end.isoformat()}; allowed: {last.isoformat()} or earlier.")
    retention = Retention.objects.filter(pk=1).first() or Retention()
    first = bucket_start(now - timedelta(days=retention.sample_days), Rollup.Resolution.DAY)
    if start < first:
        raise ValueError(
            f"from is {start.isoformat()}; allowed: {first.isoformat()} or later, because older samples are"
            " deleted."
        )
    # The retention may have been raised after samples were deleted.
    with connection.cursor() as cursor:
        cursor.execute(_DROPPED_SQL, [bucket_start(start, Rollup.Resolution.DAY), end - HOUR])
        (dropped,) = cursor.fetchone()
    if dropped is not None:
        raise ValueError(
            f"from is {start.isoformat()}; allowed: {(dropped.astimezone(UTC) + DAY).isoformat()} or later,"
            f" because the samples of {dropped.astimezone(UTC):%Y-%m-%d} are deleted."
        )


def _rebuild_hour(hour: datetime, hosts: Sequence[int], now: datetime) -> RebuildResult:
    resolutions = (Rollup.Resolution.MINUTE, Rollup.Resolution.HOUR)
    units = _units(hosts)
    before = [_stored(resolution, hour, hour + HOUR, units) for resolution in resolutions]
    first = int(hour.timestamp())
    with transaction.atomic():
        mark_minutes_due({(host, first + 60 * number) for host in hosts for number in range(60)}, now)
        mark_hours_due({(host, hour) for host in hosts}, now)
    roll_up_due_buckets(now, max_buckets=None, resolutions=resolutions)
    done = RebuildResult()
    for resolution, stored in zip(resolutions, before, strict=True):
        done.add(_compare(stored, _stored(resolution, hour, hour + HOUR, units)))
    return done


def _hosts(start: datetime, end: datetime) -> list[int]:
    """Return the ids of the hosts with samples or held units in ``[start, end)``."""
    reach = timedelta(seconds=SAMPLE_REACH_SECONDS)
    with connection.cursor() as cursor:
        cursor.execute(_HOSTS_SQL, {"start": start, "reached": end + reach, "end": end})
        return [host for (host,) in cursor.fetchall()]


def _units(hosts: Sequence[int]) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT unit.id FROM scheduler_unit AS unit JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id"
            " WHERE gpu.host_id = ANY(%s)",
            [list(hosts)],
        )
        return [unit for (unit,) in cursor.fetchall()]


def _stored(
    resolution: int, start: datetime, end: datetime, units: Sequence[int]
) -> dict[tuple[object, ...], int]:
    """Return a hash of each stored rollup by its key."""
    buckets, values = rollup_condition(resolution, start, end)
    with connection.cursor() as cursor:
        cursor.execute(_ROWS_SQL.format(buckets=buckets), [*values, list(units)])
        return {tuple(key): digest for *key, digest in cursor.fetchall()}


def _compare(before: dict[tuple[object, ...], int], after: dict[tuple[object, ...], int]) -> RebuildResult:
    keys = before.keys() | after.keys()
    return RebuildResult(len(after), sum(before.get(key) != after.get(key) for key in keys))


def parse_time(name: str, text: str) -> datetime:
    """Return the time of an ISO date or time; UTC if it names no zone. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{name} is {text!r}; allowed: a date, or a time such as 2026-03-01T09:00Z."
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
