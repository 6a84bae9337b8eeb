"""Count the GPUs that are held or that requests wait for, by weekday and hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from django.db import connection

from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_over_time import held_over_time, slot_seconds_per_step, step_edges
from telemetry.reads.usage_rows import HeldInterval, UsageRows

# A workload waits from its submission to its first GPU, or to its end if it never got one. Requests for
# slices are left out, because a slice is a different part of each GPU model.
WAITING_SQL = (
    "SELECT extract(epoch FROM w.submitted_at)::float8,"
    " extract(epoch FROM coalesce(first.placed_at, w.ended_at, %s))::float8, w.units * w.hosts"
    " FROM scheduler_workload w JOIN scheduler_project p ON p.id = w.project_id"
    " LEFT JOIN LATERAL (SELECT min(r.placed_at) AS placed_at FROM scheduler_run r"
    "   WHERE r.workload_id = w.id) first ON true"
    " WHERE w.submitted_at < %s AND coalesce(first.placed_at, w.ended_at, %s) > %s AND w.profile = %s{where}"
)


@dataclass(frozen=True)
class HourlyDemand:
    """The mean number of GPUs that were held, and that requests waited for, in one hour.

    ``start`` is aware, in the chosen zone.
    """

    start: datetime
    held: float
    waiting: float

    @property
    def wanted(self) -> float:
        return self.held + self.waiting


def hourly_demand(filters: UsageFilters, reads: UsageRows, zone: tzinfo, now: datetime) -> list[HourlyDemand]:
    """Return the demand of each hour of the period that has begun."""
    edges = step_edges(filters, timedelta(hours=1), zone)
    edges = edges[: sum(edge < now.timestamp() for edge in edges) + 1]
    if len(edges) < 2:
        return []
    series = held_over_time(reads, edges, None)
    held = series[0][2] if series else [0.0] * (len(edges) - 1)
    waits = _waiting(filters, now)
    waiting = (
        [float(value) / (SLOTS_PER_GPU * 3600) for value in slot_seconds_per_step(waits, edges)]
        if waits
        else [0.0] * (len(edges) - 1)
    )
    return [
        HourlyDemand(datetime.fromtimestamp(start, zone), of_held, of_waiting)
        for start, of_held, of_waiting in zip(edges, held, waiting, strict=False)
    ]


def demand_by_weekday(hours: Sequence[HourlyDemand]) -> list[list[float | None]]:
    """Return the mean demand by weekday (Monday first) and hour; None for an hour that did not occur."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for hour in hours:
        found[hour.start.weekday(), hour.start.hour].append(hour.wanted)
    return [
        [sum(values) / len(values) if (values := found.get((day, hour), [])) else None for hour in range(24)]
        for day in range(7)
    ]


def _waiting(filters: UsageFilters, now: datetime) -> list[HeldInterval]:
    """Return the waits of the period.

    Each is an interval with the number of GPUs that the workload requested.
    """
    where, values = filters.sql()
    # Filter by the workload's model and pool, because a waiting workload has no GPU.
    where = where.replace("g.pool_id", "w.pool_id").replace("g.model = %s", "%s = ANY(w.models_wanted)")
    end = min(filters.end, now)
    with connection.cursor() as cursor:
        cursor.execute(
            WAITING_SQL.format(where=where),
            [end, end, end, filters.start, WHOLE_GPU_PROFILE, *values],
        )
        rows = cursor.fetchall()
    low, high = filters.start.timestamp(), end.timestamp()
    return [
        HeldInterval(None, "", max(start, low), min(until, high), gpus * SLOTS_PER_GPU, False)
        for start, until, gpus in rows
        if min(until, high) > max(start, low)
    ]
