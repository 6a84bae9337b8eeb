"""Record for each host and hour whether its samples are complete, awaited or lost.

A host has a row for each hour in which one of its units was held. The hour is complete once every batch up to
its end is stored and none of its samples is lost. ``refresh_host_hours`` runs when a batch arrives, when a
batch is skipped, and when a host is removed.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Count, Min, Sum

from scheduler.models import Allocation
from telemetry.models import HostHour, HostHoursRecorded, Rollup, SampleGap
from telemetry.rollups.due_marks import bucket_start, mark_hours_due

HOUR = timedelta(hours=1)
HOURS_PER_RUN = 31 * 24
# Simulated work is left out: it has no samples, and its rollups are written directly.
_NEW_HOURS_SQL = """
INSERT INTO telemetry_hosthour (host_id, hour, state, lost_seconds)
SELECT DISTINCT gpu.host_id, bucket.hour, 'waiting', 0
FROM scheduler_allocation AS held
JOIN scheduler_workload AS work ON work.id = held.workload_id AND NOT work.simulated
JOIN scheduler_unit AS unit ON unit.id = held.unit_id
JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id
CROSS JOIN LATERAL generate_series(
    date_trunc('hour', greatest(lower(held.period), %(begin)s), 'UTC'),
    least(upper(held.period), %(until)s) - interval '1 microsecond',
    interval '1 hour'
) AS bucket (hour)
WHERE held.period && tstzrange(%(begin)s, %(until)s)
ON CONFLICT (host_id, hour) DO NOTHING RETURNING host_id, hour
"""
_REFRESH_SQL = """
UPDATE telemetry_hosthour AS old SET state = new.state, lost_seconds = new.lost_seconds
FROM (
    SELECT found.id, found.lost_seconds, CASE
        WHEN NOT found.decided THEN 'waiting' WHEN found.lost_seconds > 0 THEN 'lost' ELSE 'complete'
    END AS state
    FROM (
        SELECT each.id,
            coalesce(sum(extract(epoch FROM least(gap."end", each.hour + interval '1 hour')
                                            - greatest(gap.start, each.hour)))
                     FILTER (WHERE gap.id IS NOT NULL), 0) AS lost_seconds,
            bool_or(host.removed_at IS NOT NULL
                    OR coalesce(mark.sampled_until >= each.hour + interval '1 hour', false)) AS decided
        FROM telemetry_hosthour AS each
        JOIN scheduler_host AS host ON host.id = each.host_id
        LEFT JOIN telemetry_samplewatermark AS mark ON mark.host_id = each.host_id
        LEFT JOIN telemetry_samplegap AS gap ON gap.host_id = each.host_id
            AND gap.start < each.hour + interval '1 hour' AND gap."end" > each.hour
        WHERE each.host_id = ANY(%s) AND (each.state = 'waiting' OR each.hour > %s)
        GROUP BY each.id
    ) AS found
) AS new
WHERE old.id = new.id AND (old.state, old.lost_seconds) IS DISTINCT FROM (new.state, new.lost_seconds)
"""
_REMOVED_HOSTS_SQL = """
SELECT each.host_id, min(host.removed_at), min(mark.sampled_until), min(host.created_at)
FROM telemetry_hosthour AS each JOIN scheduler_host AS host ON host.id = each.host_id
LEFT JOIN telemetry_samplewatermark AS mark ON mark.host_id = each.host_id
WHERE each.state = 'waiting' AND host.removed_at IS NOT NULL GROUP BY each.host_id ORDER BY each.host_id
"""


def record_ended_hours(now: datetime) -> None:
    """Create the rows of the hours that have ended, and mark these hours as due for their rollups.

    One run records at most HOURS_PER_RUN hours.
    """
    hour = bucket_start(now, Rollup.Resolution.HOUR)
    with transaction.atomic():
        begin = hours_recorded_until()
        if begin is None:
            begin = _first_hour(hour)
            HostHoursRecorded.objects.bulk_create([HostHoursRecorded(until=begin)], ignore_conflicts=True)
        until = min(hour, begin + HOURS_PER_RUN * HOUR)
        created: list[tuple[int, datetime]] = []
        # If two runs are concurrent, only one of them advances ``until`` and creates the rows.
        if begin < until and HostHoursRecorded.objects.filter(pk=1, until=begin).update(until=until):
            with connection.cursor() as cursor:
                cursor.execute(_NEW_HOURS_SQL, {"begin": begin, "until": until})
                created = cursor.fetchall()
        removed = _record_removed_hosts()
        refresh_host_hours({host for host, _ in created} | removed)
        mark_hours_due(created, now)


def _first_hour(hour: datetime) -> datetime:
    """Return the first hour to record: the hour of the first allocation since the previous month began.

    The previous month may still be open. Without allocations, the result is ``hour``, the hour in progress.
    """
    previous_month = (hour.replace(day=1, hour=0) - timedelta(days=1)).replace(day=1)
    held = Allocation.objects.filter(workload__simulated=False, period__overlap=(previous_month, hour))
    first = held.aggregate(first=Min("period__startswith"))["first"]
    if first is None:
        return hour
    return bucket_start(max(first, previous_month), Rollup.Resolution.HOUR)


def refresh_host_hours(hosts: Collection[int], since: datetime | None = None) -> None:
    """Compute the states of the hosts' waiting hours again.

    If ``since`` is given, the states of complete and lost hours that end after this time are computed again
    too.
    """
    if not hosts:
        return
    first = "infinity" if since is None else since - HOUR
    with connection.cursor() as cursor:
        cursor.execute(_REFRESH_SQL, [sorted(hosts), first])


def hosts_by_state(start: datetime, end: datetime) -> dict[str, list[dict[str, Any]]]:
    """Return the hosts whose hours in ``[start, end)`` are waiting or lost, by state.

    Each entry has the keys ``host`` (name), ``hours`` (number of hours) and ``lost_seconds``.
    """
    rows = HostHour.objects.filter(hour__gte=start, hour__lt=end).exclude(state=HostHour.State.COMPLETE)
    found: dict[str, list[dict[str, Any]]] = {
        str(state): [] for state in (HostHour.State.WAITING, HostHour.State.LOST)
    }
    sums = rows.values_list("state", "host__name").annotate(Count("pk"), Sum("lost_seconds"))
    for state, name, hours, lost in sums.order_by("host__name", "host"):
        found[state].append({"host": name, "hours": hours, "lost_seconds": round(lost)})
    return found


def hours_recorded_until() -> datetime | None:
    """Return the time up to which the states of hours are recorded; None before the first run."""
    return HostHoursRecorded.objects.filter(pk=1).values_list("until", flat=True).first()


def _record_removed_hosts() -> set[int]:
    """Record the missing samples of removed hosts as lost, and return the ids of these hosts.

    A removed host sends no more samples.
    """
    with connection.cursor() as cursor:
        cursor.execute(_REMOVED_HOSTS_SQL)
        removed = cursor.fetchall()
    for host, removed_at, sampled_until, created_at in removed:
        start = sampled_until or created_at
        SampleGap.objects.get_or_create(
            host_id=host,
            cause=SampleGap.Cause.REMOVED,
            defaults={"start": start, "end": max(start, removed_at)},
        )
    return {row[0] for row in removed}
