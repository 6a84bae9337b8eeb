"""Return the last reading of the use of each run of a workload's newest attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from scheduler.models import Run, Workload
from telemetry.sql_values import array_text

_COLUMNS = (
    "cpu_seconds",
    "memory_mib",
    "memory_peak_mib",
    "io_read_bytes",
    "io_written_bytes",
    "network_rx_bytes",
    "network_tx_bytes",
)
_NAMES = ", ".join(f"used.{name}" for name in _COLUMNS)
# One index lookup for each run, whatever number of minutes it has run.
_LAST_SQL = f"""
SELECT wanted.run_id, used.ts, {_NAMES}
FROM unnest(%s::bigint[]) AS wanted (run_id)
CROSS JOIN LATERAL (
    SELECT * FROM telemetry_runuse AS each
    WHERE each.run_id = wanted.run_id AND each.ts >= %s ORDER BY each.ts DESC LIMIT 1
) AS used
"""


@dataclass(frozen=True)
class LastRunUse:
    """The last reading of one run. ``at`` is None if there is none. None: not measured.

    CPU time and bytes are since the start of the run. The memory is that of ``at``.
    """

    attempt: int
    host: str
    at: datetime | None = None
    cpu_seconds: float | None = None
    memory_mib: int | None = None
    memory_peak_mib: int | None = None
    io_read_bytes: int | None = None
    io_written_bytes: int | None = None
    network_rx_bytes: int | None = None
    network_tx_bytes: int | None = None


def last_run_use(workload: Workload) -> list[LastRunUse]:
    """Return the last reading of each run of the newest attempt, by rank. Runs two queries."""
    runs = list(
        Run.objects.filter(workload=workload, attempt=workload.attempt)
        .select_related("host")
        .order_by("rank", "pk")
    )
    if not runs:
        return []
    with connection.cursor() as cursor:
        cursor.execute(_LAST_SQL, [array_text(run.pk for run in runs), min(run.placed_at for run in runs)])
        last = {row[0]: row[1:] for row in cursor.fetchall()}
    return [LastRunUse(run.attempt, run.host.name, *last.get(run.pk, ())) for run in runs]
