"""Return how long workloads waited for their first GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection

from telemetry.core.charge_model import PREEMPTION_END_CODES
from telemetry.reads.usage_filters import USAGE_DIMENSIONS, UsageFilters


@dataclass(frozen=True)
class GroupWaitTimes:
    """The waiting times of the workloads of one group, from submission to the first GPU.

    ``p50``, ``p95`` and ``longest`` are in seconds, and cover only the ``started`` workloads.
    ``still_waiting`` is the number of workloads that still wait.
    """

    key: Any
    name: str
    started: int
    p50: float | None
    p95: float | None
    longest: float | None
    still_waiting: int
    preemptions: int


WAIT_DIMENSIONS: dict[str, tuple[str, str]] = {
    "team": USAGE_DIMENSIONS["team"],
    "project": USAGE_DIMENSIONS["project"],
    "model": ("coalesce(w.models_wanted[1], '')", "coalesce(w.models_wanted[1], '')"),
    "size": ("w.units * w.hosts", "(w.units * w.hosts)::text"),
    "type": USAGE_DIMENSIONS["type"],
}


def wait_times(by: str, filters: UsageFilters) -> list[GroupWaitTimes]:
    """Return how long workloads waited for their first GPU, by team, project, model, size or type.

    Only workloads that were submitted in the period count.
    """
    if by not in WAIT_DIMENSIONS:
        raise ValueError(f"by: {by!r} is not one of {', '.join(WAIT_DIMENSIONS)}")
    key, name = WAIT_DIMENSIONS[by]
    where, values = filters.sql()
    # Filter by the workload's model and pool, because a waiting workload has no GPU.
    where = where.replace("g.pool_id", "w.pool_id").replace("g.model = %s", "%s = ANY(w.models_wanted)")
    waited = "extract(epoch FROM first.placed_at - w.submitted_at)::float8"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {key}, {name}, count(first.placed_at),"
            f" percentile_cont(0.5) WITHIN GROUP (ORDER BY {waited}),"
            f" percentile_cont(0.95) WITHIN GROUP (ORDER BY {waited}),"
            f" max({waited}), count(*) FILTER (WHERE w.state = 'queued' AND first.placed_at IS NULL),"
            " sum(coalesce(first.preemptions, 0))::int"
            " FROM scheduler_workload w JOIN scheduler_project p ON p.id = w.project_id"
            " JOIN scheduler_team t ON t.id = p.team_id"
            " LEFT JOIN LATERAL (SELECT min(r.placed_at) AS placed_at,"
            "   count(DISTINCT r.attempt) FILTER (WHERE held.end_code = ANY(%s)) AS preemptions"
            "   FROM scheduler_run r JOIN scheduler_allocation held ON held.run_id = r.id"
            "   WHERE r.workload_id = w.id) first ON true"
            f" WHERE w.submitted_at >= %s AND w.submitted_at < %s{where} GROUP BY 1, 2 ORDER BY 2, 1",
            [sorted(PREEMPTION_END_CODES), filters.start, filters.end, *values],
        )
        return [GroupWaitTimes(*row) for row in cursor.fetchall()]
