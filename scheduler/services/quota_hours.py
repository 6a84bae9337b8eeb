"""For each quota that limits GPU-hours, count the used GPU-hours from the team's allocations.

One query counts the hours every minute, however many allocations there are. The planner reads only whether a
quota is used up. So the engine is nudged only if this changes or if a new period begins. Periods start at
midnight (UTC): every day, every Monday, or on the first day of the month.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection, transaction

from scheduler.coordination import locks
from scheduler.models import Quota
from scheduler.state import nudge

USED_HOURS_SQL = """
SELECT quota.id, COALESCE(SUM(
    (upper(allocation.slots) - lower(allocation.slots))
    * EXTRACT(EPOCH FROM LEAST(COALESCE(upper(allocation.period), %(now)s), %(now)s)
                         - GREATEST(lower(allocation.period), begun.at))
), 0)
FROM scheduler_quota AS quota
CROSS JOIN LATERAL (
    SELECT date_trunc(quota.hours_period, %(now)s AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' AS at
) AS begun
LEFT JOIN (
    scheduler_allocation AS allocation
    JOIN scheduler_project AS project ON project.id = allocation.project_id
    JOIN scheduler_unit AS unit ON unit.id = allocation.unit_id
    JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id
) ON project.team_id = quota.team_id AND gpu.pool_id = quota.pool_id AND gpu.model = quota.model
 AND allocation.period && tstzrange(begun.at, %(now)s)
WHERE quota.removed_at IS NULL AND quota.hours_slot_seconds IS NOT NULL
  AND (%(only)s::bigint IS NULL OR quota.id = %(only)s)
GROUP BY quota.id
ORDER BY quota.id
"""


@dataclass(frozen=True, slots=True)
class QuotaPeriod:
    start: datetime
    end: datetime


def quota_period_at(kind: str, now: datetime) -> QuotaPeriod:
    """Return the day, week or month (UTC) that contains ``now``."""
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if kind == Quota.Period.DAY:
        return QuotaPeriod(day, day + timedelta(days=1))
    if kind == Quota.Period.WEEK:
        monday = day - timedelta(days=day.weekday())
        return QuotaPeriod(monday, monday + timedelta(days=7))
    first = day.replace(day=1)
    return QuotaPeriod(first, (first + timedelta(days=32)).replace(day=1))


def count_quota_hours(now: datetime, only: Quota | None = None) -> int:
    """Count the used GPU-hours of each quota in its current period, and store whether they are used up.

    Count every quota that limits GPU-hours, or only the quota ``only``. Return the number of quotas whose
    ``hours_used_up`` changed.
    """
    with connection.cursor() as cursor:
        cursor.execute(USED_HOURS_SQL, {"now": now, "only": only.pk if only else None})
        used = {pk: int(seconds) for pk, seconds in cursor.fetchall()}
    return sum(
        _store_use(quota, used[quota.pk], now) for quota in Quota.objects.filter(pk__in=used).order_by("pk")
    )


def _store_use(quota: Quota, used: int, now: datetime) -> bool:
    """Store the slot-seconds ``used`` of one quota. Return True if ``hours_used_up`` changed."""
    until = quota_period_at(quota.hours_period, now).end
    used_up = used >= (quota.hours_slot_seconds or 0)
    same_period = quota.hours_until == until
    values = {"hours_used": used, "hours_counted_at": now}
    if used_up == quota.hours_used_up and same_period:
        Quota.objects.filter(pk=quota.pk).update(**values)
        return False
    with transaction.atomic():
        locks.pools([quota.pool_id])
        Quota.objects.filter(pk=quota.pk).update(**values, hours_used_up=used_up, hours_until=until)
        nudge.engine()
        nudge.pages(nudge.QUEUE)
    return used_up != quota.hours_used_up
