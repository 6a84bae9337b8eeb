"""Return the GPU-hours that were held and waited for on each day, by pool and model.

The definition is that of ``telemetry.reads.demand``: a request waits from its submission to its first GPU, or
to its end if it never got one, and requests for slices do not count while they wait. A waiting request counts
for the model that it got. Otherwise it counts for the first model that it accepts, and without one for the
most frequent model of its pool.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import date, datetime, timedelta, tzinfo
from typing import Any

from django.db import connection

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR, SLOTS_PER_GPU, WHOLE_GPU_PROFILE

DAYS_SQL = "unnest(%s::timestamptz[], %s::timestamptz[]) WITH ORDINALITY AS day (start, until, number)"
SECONDS_SQL = "extract(epoch FROM least({end}, day.until) - greatest({start}, day.start))::float8"
HELD_SQL = (
    "SELECT g.pool_id, g.model, day.number, sum((upper(u.slots) - lower(u.slots)) * "
    + SECONDS_SQL.format(start="lower(a.period)", end="coalesce(upper(a.period), day.until)")
    + f") FROM {DAYS_SQL} JOIN scheduler_allocation a ON a.period && tstzrange(day.start, day.until)"
    " JOIN scheduler_unit u ON u.id = a.unit_id JOIN scheduler_gpu g ON g.id = u.gpu_id GROUP BY 1, 2, 3"
)
WAITING_SQL = (
    "WITH usual AS (SELECT DISTINCT ON (pool_id) pool_id, model FROM scheduler_gpu WHERE retired_at IS NULL"
    "   GROUP BY 1, 2 ORDER BY 1, count(*) DESC, 2),"
    " wait AS (SELECT w.pool_id, w.models_wanted[1] AS wanted, got.model AS got, w.submitted_at AS start,"
    "   coalesce(got.placed_at, w.ended_at, %s) AS until, w.units * w.hosts AS gpus"
    "   FROM scheduler_workload w LEFT JOIN LATERAL (SELECT r.placed_at, g.model FROM scheduler_run r"
    "     JOIN scheduler_allocation a ON a.run_id = r.id JOIN scheduler_unit u ON u.id = a.unit_id"
    "     JOIN scheduler_gpu g ON g.id = u.gpu_id WHERE r.workload_id = w.id"
    "     ORDER BY r.placed_at, a.id LIMIT 1) got ON true"
    "   WHERE w.profile = %s AND w.submitted_at < %s"
    "   AND (w.ended_at IS NULL OR w.ended_at > %s))"
    " SELECT wait.pool_id, coalesce(wait.got, wait.wanted, usual.model, ''), day.number,"
    f"   sum(wait.gpus * {SLOTS_PER_GPU} * "
    + SECONDS_SQL.format(start="wait.start", end="wait.until")
    + f") FROM wait LEFT JOIN usual ON usual.pool_id = wait.pool_id JOIN {DAYS_SQL}"
    " ON wait.start < day.until AND wait.until > day.start GROUP BY 1, 2, 3"
)
DemandByDay = dict[tuple[int, str], dict[date, float]]


def daily_demand(end: date, days: int, zone: tzinfo) -> DemandByDay:
    """Return the GPU-hours of each known day of the ``days`` days before ``end``, by (pool id, model).

    A day is from midnight to midnight in ``zone``. Unknown days have no entry: those before the first demand
    of the pool and model, and those on which nobody held or wanted a GPU in any pool, because the site was
    off.
    """
    dates = [end - timedelta(days=number) for number in range(days, 0, -1)]
    edges = [datetime(day.year, day.month, day.day, tzinfo=zone) for day in [*dates, end]]
    starts, ends = edges[:-1], edges[1:]
    waits: list[Any] = [edges[-1], WHOLE_GPU_PROFILE, edges[-1], edges[0], starts, ends]
    with connection.cursor() as cursor:
        cursor.execute(f"{HELD_SQL} UNION ALL ({WAITING_SQL})", [starts, ends, *waits])
        rows = cursor.fetchall()
    sums: dict[tuple[int, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for pool, model, number, slot_seconds in rows:
        sums[pool, model][int(number) - 1] += slot_seconds / SLOT_SECONDS_PER_GPU_HOUR
    recorded = sorted({number for of_days in sums.values() for number in of_days})
    return {
        key: {dates[n]: of_days.get(n, 0.0) for n in recorded if n >= min(of_days)}
        for key, of_days in sums.items()
    }
