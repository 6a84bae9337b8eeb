"""Read the runs that ended in a period, with the advice of their stored reports."""

from __future__ import annotations

import json
from typing import Any

from django.db import connection

from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.core.capacity.right_sizing import ReportedRun
from telemetry.core.rollup import HOUR
from telemetry.reads.usage_filters import UsageFilters

RUNS_SQL = (
    "SELECT w.id, w.project_id, w.owner_id, w.name, report.advice,"
    " sum(used.held_seconds * (upper(u.slots) - lower(u.slots)))"
    " FROM telemetry_runreport report JOIN scheduler_workload w ON w.id = report.workload_id"
    " JOIN scheduler_project p ON p.id = w.project_id"
    " JOIN telemetry_runreportunit used ON used.report_id = report.workload_id"
    " JOIN scheduler_unit u ON u.id = used.unit_id JOIN scheduler_gpu g ON g.id = u.gpu_id"
    ' WHERE report."end" >= %s AND report."end" < %s{where} GROUP BY w.id, report.advice'
)


def reported_runs(filters: UsageFilters) -> list[ReportedRun]:
    """Return the runs whose last hold ended in the period, and that match the filters."""
    where, values = filters.sql()
    with connection.cursor() as cursor:
        cursor.execute(RUNS_SQL.format(where=where), [filters.start, filters.end, *values])
        return [
            ReportedRun(pk, project, owner, name, slot_seconds / SLOTS_PER_GPU / HOUR, _by_code(advice))
            for pk, project, owner, name, advice, slot_seconds in cursor.fetchall()
        ]


def _by_code(advice: Any) -> dict[str, dict[str, Any]]:
    rows = json.loads(advice) if isinstance(advice, str) else advice
    return {row["code"]: row["numbers"] for row in rows}
