"""Mark rollup buckets as due, and claim the marks.

A bucket is due if its samples must be rolled up, for the first time or again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from django.db import connection

from telemetry.models import Rollup, RollupDue
from telemetry.sql_values import array_text, time_array_text

HELD_TOLERANCE_SECONDS = 0.001
_ROLLUPS_PAST_END_SQL = """
SELECT DISTINCT rollup.resolution, rollup.bucket, rollup.host_id
FROM unnest(%(allocations)s::bigint[], %(ends)s::timestamptz[]) AS ended (allocation, at)
JOIN telemetry_rollup AS rollup ON rollup.allocation_id = ended.allocation
    AND rollup.resolution = ANY(%(resolutions)s) AND rollup.bucket > ended.at - interval '1 hour'
    AND rollup.held_seconds > %(tolerance)s
        + greatest(0, extract(epoch FROM ended.at - rollup.bucket)::float8)
WHERE rollup.allocation_id = ANY(%(allocations)s::bigint[])
    AND rollup.container > %(first)s::timestamptz - interval '1 day'"""


def mark_minutes_due(due: Iterable[tuple[int, int]], now: datetime) -> None:
    """Mark minutes as due, even if they were rolled up before.

    A minute is given as (host id, start of the minute in seconds since the epoch).
    """
    ordered = sorted(due)
    if not ordered:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_rollupdue (resolution, bucket, host_id, marked_at)"
            " SELECT %s, to_timestamp(v.minute), v.host, %s"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS v (host, minute)"
            " ON CONFLICT (resolution, bucket, host_id) DO UPDATE SET marked_at = excluded.marked_at",
            [
                int(Rollup.Resolution.MINUTE),
                now,
                [host for host, _ in ordered],
                [minute for _, minute in ordered],
            ],
        )


def claim_due_marks(due: Sequence[RollupDue]) -> list[tuple[datetime, int]]:
    """Delete the marks in ``due``. Return (bucket start, host id) of each mark that this call deleted.

    A mark that a concurrent run has already deleted is not returned.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM telemetry_rollupdue WHERE id = ANY(%s) RETURNING bucket, host_id",
            [[mark.pk for mark in due]],
        )
        return sorted(cursor.fetchall())


def mark_hours_due(hours: Iterable[tuple[int, datetime]], now: datetime) -> None:
    """Mark hours as due, even if they were rolled up before. An hour is given as (host id, start)."""
    _mark_due(Rollup.Resolution.HOUR, set(hours), now)


def mark_days_due(days: Iterable[tuple[int, datetime]], now: datetime) -> None:
    """Mark days as due, even if they were rolled up before. A day is given as (host id, start)."""
    _mark_due(Rollup.Resolution.DAY, set(days), now)


def mark_evidence_due(hosts_of: dict[datetime, list[int]]) -> None:
    """Mark the usage evidence of charge lines as due. ``hosts_of`` contains host ids by start of the hour."""
    marks = sorted((host, hour) for hour, hosts in hosts_of.items() for host in hosts)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_evidencedue (host_id, hour)"
            " SELECT * FROM unnest(%s::bigint[], %s::timestamptz[]) ON CONFLICT (hour, host_id) DO NOTHING",
            [[host for host, _ in marks], [hour for _, hour in marks]],
        )


def mark_rollups_past_end(ends: Mapping[int, datetime], now: datetime) -> None:
    """Mark minutes and hours as due if they count held time after the end of an allocation.

    Such rollups were written before the end became known. ``ends`` maps allocation ids to ends. When these
    buckets are rolled up, the longer buckets become due.
    """
    if not ends:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            _ROLLUPS_PAST_END_SQL,
            {
                "first": min(ends.values()),
                "allocations": array_text(ends),
                "ends": time_array_text(ends.values()),
                "resolutions": [int(Rollup.Resolution.MINUTE), int(Rollup.Resolution.HOUR)],
                "tolerance": HELD_TOLERANCE_SECONDS,
            },
        )
        due: dict[int, set[tuple[int, datetime]]] = defaultdict(set)
        for resolution, bucket, host in cursor.fetchall():
            due[resolution].add((host, bucket))
    for resolution, marks in due.items():
        _mark_due(resolution, marks, now)


def _mark_due(resolution: int, marks: Collection[tuple[int, datetime]], now: datetime) -> None:
    if not marks:
        return
    ordered = sorted(marks)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_rollupdue (resolution, bucket, host_id, marked_at)"
            " SELECT %s, v.bucket, v.host, %s"
            " FROM unnest(%s::bigint[], %s::timestamptz[]) AS v (host, bucket)"
            " ON CONFLICT (resolution, bucket, host_id) DO UPDATE SET marked_at = excluded.marked_at",
            [
                int(resolution),
                now,
                array_text(host for host, _ in ordered),
                time_array_text(bucket for _, bucket in ordered),
            ],
        )


def bucket_start(moment: datetime, resolution: int) -> datetime:
    """Return the start (UTC) of the bucket of ``resolution`` seconds that contains ``moment``."""
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % resolution, UTC)
