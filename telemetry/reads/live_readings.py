"""Return the current readings of all units."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from telemetry.models import Rollup, sample_bins
from telemetry.rollups.storage import rollup_condition

STALE_AFTER = timedelta(seconds=90)  # older readings are not current
# The ids are read first: a join would expand the arrays of all allocations.
_MINUTES_SQL = """
SELECT held.workload_id, used.bucket, sum(used.utilisation_seconds), sum(used.covered_seconds)
FROM telemetry_rollup AS used JOIN scheduler_allocation AS held ON held.id = used.allocation_id
WHERE used.allocation_id = ANY(ARRAY(
        SELECT id FROM scheduler_allocation WHERE workload_id = ANY(%s) AND period && tstzrange(%s, %s)))
    AND {buckets}
GROUP BY 1, 2 ORDER BY 2
"""
LIVE_FIELDS = (
    "utilisation",
    "sm_active",
    "tensor_active",
    "memory_used_mib",
    "power_w",
    "energy_mj",
    "temperature_c",
    "sm_clock_mhz",
    "throttle_reasons",
    "processes",
    "stray_processes",
)


@dataclass(frozen=True)
class LiveUnitReading:
    """The last reading of a unit.

    If the last reading is stale or missing, ``at`` and all readings are None.
    """

    unit: int
    gpu: int
    host: int
    host_name: str
    gpu_index: int
    model: str
    profile: str
    uuid: str
    pool_slug: str
    memory_mib: int
    simulated: bool
    allocation: int | None
    workload: int | None
    at: datetime | None
    utilisation: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    memory_used_mib: int | None = None
    power_w: float | None = None
    energy_mj: int | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: int | None = None
    processes: int | None = None
    stray_processes: int | None = None


def live_unit_readings(
    now: datetime, *, pool: int | None = None, hosts: Collection[int] | None = None
) -> list[LiveUnitReading]:
    """Return the last reading of every unit that is not retired, in order of host and GPU. Runs one query."""
    where = ""
    values: dict[str, Any] = {
        "first": now - STALE_AFTER,
        "last": now + STALE_AFTER,
        "pool": pool,
        "hosts": None,
    }
    if pool is not None:
        where += " AND h.pool_id = %(pool)s"
    if hosts is not None:
        where += " AND h.id = ANY(%(hosts)s)"
        values["hosts"] = list(hosts)
    readings = ", ".join(f"s.{name}" for name in LIVE_FIELDS)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT u.id, g.id, h.id, h.name, g.index, g.model, u.profile, u.uuid, p.slug,"
            f" u.memory_mib, h.simulated, a.id, a.workload_id, s.ts, {readings}"
            " FROM scheduler_unit u JOIN scheduler_gpu g ON g.id = u.gpu_id"
            " JOIN scheduler_host h ON h.id = g.host_id JOIN scheduler_pool p ON p.id = h.pool_id"
            " LEFT JOIN scheduler_allocation a ON a.unit_id = u.id AND upper_inf(a.period)"
            " LEFT JOIN LATERAL (SELECT * FROM telemetry_sample x"
            "   WHERE x.unit_id = u.id AND x.ts > %(first)s AND x.ts <= %(last)s"
            f"   AND {sample_bins('x.ts', '%(first)s', '%(last)s')}"
            "   ORDER BY x.ts DESC LIMIT 1) s ON true"
            f" WHERE u.retired_at IS NULL AND g.retired_at IS NULL{where}"
            " ORDER BY h.name, g.index, lower(u.slots)",
            values,
        )
        return [LiveUnitReading(*row) for row in cursor.fetchall()]


def minutes_of_workloads(
    workloads: Collection[int], start: datetime, end: datetime
) -> list[tuple[int, datetime, float | None, float]]:
    """Return (workload id, start, utilisation seconds, covered seconds) of each minute, in order of time."""
    buckets, values = rollup_condition(Rollup.Resolution.MINUTE, start, end)
    with connection.cursor() as cursor:
        cursor.execute(_MINUTES_SQL.format(buckets=buckets), [list(workloads), start, end, *values])
        return list(cursor.fetchall())
