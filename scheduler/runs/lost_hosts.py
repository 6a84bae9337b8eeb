"""End the runs of a host that is lost."""

from __future__ import annotations

from datetime import datetime

from scheduler.coordination import locks
from scheduler.core.reasons import ReasonCode
from scheduler.models import Host, Run
from scheduler.runs import attempts
from scheduler.state.states import RunState


def end_runs_of_lost_host(host: Host, now: datetime) -> None:
    """End every run of a host whose lease, grace and margin have passed.

    The shims have stopped the workloads by then, since nobody renewed the lease. The caller has locked the
    host in its transaction.
    """
    runs = list(Run.objects.filter(host=host).exclude(state=RunState.ENDED).order_by("pk"))
    workloads = locks.workloads(run.workload_id for run in runs)
    for run in runs:
        attempts.end_run(run, outcome=ReasonCode.HOST_LOST, exit_code=None, at=now, now=now)
    for workload in workloads.values():
        attempts.settle_workload(workload, now)
