"""Count the GPUs that are held or that requests wait for, by weekday and hour."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

import numpy as np
from django.db import connection

from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE
from telemetry.core.rollup import HOUR
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_over_time import held_over_time, slot_seconds_per_step, step_edges
from telemetry.reads.usage_rows import Floats, HeldInterval, Integers, UsageRows
from telemetry.reads.utilisation.week import CELLS, by_weekday, cells_of_week

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
    """The mean number of GPUs that were held, and that requests waited for, in each hour.

    ``starts`` are in seconds since the epoch.
    """

    starts: Integers
    held: Floats
    waiting: Floats

    @property
    def wanted(self) -> Floats:
        return self.held + self.waiting


def hourly_demand(filters: UsageFilters, reads: UsageRows, zone: tzinfo, now: datetime) -> HourlyDemand:
    """Return the demand of each hour of the period that has begun. Days begin at midnight in ``zone``."""
    edges = step_edges(filters, timedelta(hours=1), zone)
    edges = edges[: bisect_left(edges, now.timestamp()) + 1]
    starts = np.array(edges[:-1], dtype=np.int64)
    held, waiting = np.zeros(len(starts)), np.zeros(len(starts))
    if len(starts):
        series = held_over_time(reads, edges, None)
        held = np.array(series[0][2]) if series else held
        waits = _waiting(filters, now)
        waiting = slot_seconds_per_step(waits, edges) / (SLOTS_PER_GPU * HOUR) if waits else waiting
    return HourlyDemand(starts, held, waiting)


def demand_by_weekday(demand: HourlyDemand, zone: tzinfo) -> list[list[float | None]]:
    """Return the mean demand by weekday (Monday first) and hour; None for an hour that did not occur."""
    cells = cells_of_week(demand.starts, zone)
    counts, sums = np.bincount(cells, minlength=CELLS), np.bincount(cells, demand.wanted, CELLS)
    return by_weekday(
        [
            value / count if count else None
            for value, count in zip(sums.tolist(), counts.tolist(), strict=True)
        ]
    )


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
