"""Work that its host can't end: it was killed and a process is still there, stuck in the kernel or in a driver.

Nobody gets its GPU meanwhile, since its slots stay held until the host confirms the end. Here the GPU is taken out of use as a
whole, so that the operator hears of it, and given back when the process has gone after all.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from scheduler.coordination import leases, locks
from scheduler.models import Allocation, Gpu, Run
from scheduler.services.hosts import change_gpu_repair
from scheduler.state.states import LeaseState, RepairState, RunState, WorkloadState

STUCK_REASON = "its workload was killed and a process of it is still there"


def sweep_stuck_processes(now: datetime) -> None:
    """Quarantine the GPUs of what should have gone a lease ago and is still there on a living host; free those of what has gone."""
    late = now - timedelta(seconds=leases.lease_rules().lease_seconds)
    stuck = Run.objects.filter(
        state=RunState.STOPPING,
        host__lease_state=LeaseState.ALIVE,
        workload__state=WorkloadState.STOPPING,
        workload__gone_by__lte=late,
    )
    held = Allocation.objects.filter(run__in=stuck, period__upper_inf=True)
    for gpu in Gpu.objects.filter(pk__in=held.values("unit__gpu"), repair_state=RepairState.WELL).order_by(
        "pk"
    ):
        _change(gpu, RepairState.WELL, RepairState.QUARANTINED, STUCK_REASON, now)
    # Of a host that does not speak nobody knows that it has gone.
    out = Gpu.objects.filter(
        repair_state=RepairState.QUARANTINED, state_reason=STUCK_REASON, host__lease_state=LeaseState.ALIVE
    )
    open_ones = Allocation.objects.filter(period__upper_inf=True, run__in=stuck)
    for gpu in out.exclude(pk__in=open_ones.values("unit__gpu")).order_by("pk"):
        _change(gpu, RepairState.QUARANTINED, RepairState.WELL, "the process has gone", now)


def _change(gpu: Gpu, old: RepairState, new: RepairState, reason: str, now: datetime) -> None:
    with transaction.atomic():
        locks.hosts([gpu.host_id])
        fresh = Gpu.objects.get(pk=gpu.pk)
        if fresh.repair_state == old and (old == RepairState.WELL or fresh.state_reason == STUCK_REASON):
            change_gpu_repair(fresh, new, reason, now)
