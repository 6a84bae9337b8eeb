"""Quarantine GPUs whose workload was killed but still has a process that is stuck in the kernel or a driver.

The slots stay held until the host confirms the end of the run, so no other workload gets them. The quarantine
shows the whole GPU to operators. It ends when the process has ended.
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
    """Quarantine GPUs whose run on a live host should have ended at least one lease ago.

    A GPU that this function quarantined returns to service when the run has ended.
    """
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
    # GPUs of silent hosts stay quarantined, because a silent host cannot confirm that the process has ended.
    quarantined = Gpu.objects.filter(
        repair_state=RepairState.QUARANTINED, state_reason=STUCK_REASON, host__lease_state=LeaseState.ALIVE
    )
    still_held = Allocation.objects.filter(period__upper_inf=True, run__in=stuck)
    for gpu in quarantined.exclude(pk__in=still_held.values("unit__gpu")).order_by("pk"):
        _change(gpu, RepairState.QUARANTINED, RepairState.WELL, "the process has ended", now)


def _change(gpu: Gpu, old: RepairState, new: RepairState, reason: str, now: datetime) -> None:
    with transaction.atomic():
        locks.hosts([gpu.host_id])
        fresh = Gpu.objects.get(pk=gpu.pk)
        if fresh.repair_state == old and (old == RepairState.WELL or fresh.state_reason == STUCK_REASON):
            change_gpu_repair(fresh, new, reason, now)
