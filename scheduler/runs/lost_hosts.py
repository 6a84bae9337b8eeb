"""End the runs of a host that is lost."""

from __future__ import annotations

from datetime import datetime

from scheduler.coordination import locks
from scheduler.core.reasons import ReasonCode
from scheduler.models import Host, Run
from scheduler.runs import attempts
from scheduler.state.states import RunState


def end_runs_of_lost_host(host: Host, now: datetime) -> None:
    """End every run of a host whose lease, grace period and margin have passed.

    By then the host's supervisor processes (shims) have stopped the workloads, because the lease was not
    renewed. The caller has locked the host.
    """
    runs = list(Run.objects.filter(host=host).exclude(state=RunState.ENDED).order_by("pk"))
    workloads = locks.workloads(run.workload_id for run in runs)
    for run in runs:
        attempts.end_run(run, outcome=ReasonCode.HOST_LOST, exit_code=None, at=now, now=now)
    for workload in workloads.values():
        attempts.settle_workload(workload, now)
