"""Return how long workloads waited for their first GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connection

from scheduler.models import Workload
from telemetry.core.charge_model import PREEMPTION_END_CODES
from telemetry.reads.usage_filters import USAGE_DIMENSIONS, UsageFilters


@dataclass(frozen=True)
class GroupWaitTimes:
    """The waiting times of the workloads of one group, from submission to the first GPU.

    ``p10`` to ``p95`` and ``longest`` are in seconds, and cover only the ``started`` workloads.
    ``still_waiting`` is the number of workloads that still wait.
    """

    key: Any
    name: str
    started: int
    p10: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    longest: float | None
    still_waiting: int
    preemptions: int


@dataclass(frozen=True)
class RequestWait:
    """The wait of one workload, in seconds. ``waited`` is None if it has had no GPU."""

    workload: int
    waited: float | None
    still_waiting: bool
    preemptions: int


WAIT_DIMENSIONS: dict[str, tuple[str, str]] = {
    "team": USAGE_DIMENSIONS["team"],
    "project": USAGE_DIMENSIONS["project"],
    "model": ("coalesce(w.models_wanted[1], '')", "coalesce(w.models_wanted[1], '')"),
    "size": ("w.units * w.hosts", "(w.units * w.hosts)::text"),
    "type": USAGE_DIMENSIONS["type"],
}
# The groups of the utilisation page, which one query reads. The first one is the default.
WAIT_GROUPS = ("size", "model", "team")
_WAITED_SQL = (
    "SELECT {columns},"
    " extract(epoch FROM first.placed_at - w.submitted_at)::float8 AS waited,"
    " w.state = 'queued' AND first.placed_at IS NULL AS waits, coalesce(first.preemptions, 0) AS preemptions"
    " FROM scheduler_workload w JOIN scheduler_project p ON p.id = w.project_id"
    " JOIN scheduler_team t ON t.id = p.team_id"
    " LEFT JOIN LATERAL (SELECT min(r.placed_at) AS placed_at,"
    "   count(DISTINCT r.attempt) FILTER (WHERE held.end_code = ANY(%s)) AS preemptions"
    "   FROM scheduler_run r JOIN scheduler_allocation held ON held.run_id = r.id"
    "   WHERE r.workload_id = w.id) first ON true"
    " WHERE w.submitted_at >= %s AND w.submitted_at < %s{where}"
)
_WAITS_SQL = f"WITH waited AS MATERIALIZED ({_WAITED_SQL}) {{groups}}"
_OF_SIZE_SQL = (
    f"WITH waited AS MATERIALIZED ({_WAITED_SQL} AND w.units * w.hosts = %s)"
    " SELECT id, waited, waits, preemptions, count(*) OVER () FROM waited"
    " ORDER BY waits DESC, waited DESC NULLS LAST, id LIMIT %s"
)
_GROUP_SQL = (
    "(SELECT {number}, key_{number}::text, name_{number}, count(waited),"
    " percentile_cont(ARRAY[0.1, 0.5, 0.9, 0.95]) WITHIN GROUP (ORDER BY waited), max(waited),"
    " count(*) FILTER (WHERE waits), sum(preemptions)::int FROM waited GROUP BY 2, 3, key_{number}"
    " ORDER BY 3, key_{number})"
)
_USUAL_WAIT_SQL = """
SELECT count(waited), percentile_cont(0.5) WITHIN GROUP (ORDER BY waited) FROM (
    SELECT extract(epoch FROM min(run.placed_at) - work.submitted_at)::float8 AS waited
    FROM scheduler_workload work JOIN scheduler_run run ON run.workload_id = work.id
    WHERE work.submitted_at >= %(since)s AND work.submitted_at < %(until)s AND work.pool_id = %(pool)s
        AND work.profile = %(profile)s AND work.models_wanted = %(models)s
        AND work.units * work.hosts = %(size)s AND work.reservation_id IS NULL AND work.not_before IS NULL
        AND NOT EXISTS (SELECT FROM scheduler_dependency WHERE workload_id = work.id)
    GROUP BY work.id) AS waits
"""
_UNKNOWN = (None, None, None, None)


def wait_times(by: Sequence[str], filters: UsageFilters) -> dict[str, list[GroupWaitTimes]]:
    """Return how long workloads waited for their first GPU, by each of the groupings.

    A grouping is team, project, model, size or type. Only workloads that were submitted in the period count.
    """
    for name in by:
        if name not in WAIT_DIMENSIONS:
            raise ValueError(f"by: {name!r} is not one of {', '.join(WAIT_DIMENSIONS)}")
    where, values = _conditions(filters)
    columns = ", ".join(
        f"{WAIT_DIMENSIONS[name][0]} AS key_{number}, {WAIT_DIMENSIONS[name][1]} AS name_{number}"
        for number, name in enumerate(by)
    )
    groups = " UNION ALL ".join(_GROUP_SQL.format(number=number) for number in range(len(by)))
    with connection.cursor() as cursor:
        cursor.execute(
            _WAITS_SQL.format(columns=columns, where=where, groups=groups),
            [sorted(PREEMPTION_END_CODES), filters.start, filters.end, *values],
        )
        rows = cursor.fetchall()
    found: dict[str, list[GroupWaitTimes]] = {name: [] for name in by}
    for number, key, name, started, percentiles, *rest in rows:
        group = int(key) if key.isdigit() else key
        found[by[number]].append(GroupWaitTimes(group, name, started, *(percentiles or _UNKNOWN), *rest))
    if "size" in found:
        found["size"].sort(key=lambda row: row.key)
    return found


def waits_of_size(size: int, filters: UsageFilters, most: int) -> tuple[list[RequestWait], int]:
    """Return the workloads of ``size`` units that ``wait_times`` counts, and their number.

    Those that still wait come first, then those that waited longest. At most ``most`` are returned.
    """
    where, values = _conditions(filters)
    with connection.cursor() as cursor:
        cursor.execute(
            _OF_SIZE_SQL.format(columns="w.id", where=where),
            [sorted(PREEMPTION_END_CODES), filters.start, filters.end, *values, size, most],
        )
        rows = cursor.fetchall()
    return [RequestWait(*row[:-1]) for row in rows], rows[0][-1] if rows else 0


@dataclass(frozen=True)
class UsualWait:
    """The waits of similar requests, from submission to the first GPU: their number and median seconds."""

    requests: int
    median_seconds: float


def usual_wait(workload: Workload, size: int, before: timedelta) -> UsualWait | None:
    """Return the usual wait of similar requests for ``size`` units; None if there is no such request.

    Similar requests have the pool, profile and models of the workload, were submitted in the time ``before``
    it, and have started. Requests inside a reservation, with a dependency or with an earliest start are left
    out, because they did not wait for GPUs alone.
    """
    values: dict[str, Any] = {
        "size": size,
        "pool": workload.pool_id,
        "profile": workload.profile,
        "models": workload.models_wanted,
        "since": workload.submitted_at - before,
        "until": workload.submitted_at,
    }
    with connection.cursor() as cursor:
        cursor.execute(_USUAL_WAIT_SQL, values)
        count, median = cursor.fetchone()
    return UsualWait(count, median) if count else None


def _conditions(filters: UsageFilters) -> tuple[str, list[Any]]:
    """Return SQL conditions by the workload's own model and pool, because a waiting workload has no GPU."""
    where, values = filters.sql()
    where = where.replace("g.pool_id", "w.pool_id").replace("g.model = %s", "%s = ANY(w.models_wanted)")
    return where, values
