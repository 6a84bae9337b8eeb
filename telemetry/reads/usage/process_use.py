"""Return the processes of a workload that use its GPUs now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.models import Workload
from telemetry.core.counters import MAX_GAP_SECONDS
from telemetry.models import ProcessUse

CURRENT = timedelta(seconds=MAX_GAP_SECONDS)  # longest age of a present reading


@dataclass(frozen=True)
class WorkloadProcess:
    """The last reading of one process on one unit. None: not measured."""

    host: str
    gpu: int
    profile: str
    pid: int
    name: str
    sm_percent: float | None
    memory_mib: int | None


def workload_processes(workload: Workload, now: datetime) -> list[WorkloadProcess]:
    """Return the processes on the workload's units, by host, GPU and pid. Runs one query."""
    rows = (
        ProcessUse.objects.filter(run__workload=workload, ts__gt=now - CURRENT, ts__lte=now)
        .order_by("unit", "pid", "-ts")
        .distinct("unit", "pid")
        .select_related("unit__gpu__host")
    )
    last: dict[int, datetime] = {}
    for row in rows:
        last[row.unit_id] = max(row.ts, last.get(row.unit_id, row.ts))
    # A process that is not in the newest reading of its unit has ended.
    found = [_process(row) for row in rows if row.ts == last[row.unit_id]]
    return sorted(found, key=lambda each: (each.host, each.gpu, each.profile, each.pid))


def _process(row: ProcessUse) -> WorkloadProcess:
    gpu, profile = row.unit.gpu, row.unit.profile
    return WorkloadProcess(
        gpu.host.name, gpu.index, profile, row.pid, row.name, row.sm_percent, row.memory_mib
    )
