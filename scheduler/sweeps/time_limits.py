"""What time alone brings about: ends of notices, limits and reservations, no-shows, maintenance, hosts that fall silent.

Each function is a level-triggered tick over rows: calling it twice, late or in two processes at once does the same work once.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import DurationField, ExpressionWrapper, F, Min, Value
from django.db.models.functions import Coalesce

from scheduler.coordination import locks
from scheduler.core.reasons import ReasonCode
from scheduler.models import (
    Command,
    Run,
    Workload,
    WorkloadKind,
)
from scheduler.runs import commands
from scheduler.services.workloads import request_stop
from scheduler.state.states import (
    LeaseState,
    RunState,
    WorkloadState,
)

ONE_SECOND = timedelta(seconds=1)
START_TIMEOUT = timedelta(seconds=120)  # from placement until the agent names the run
NOTEBOOK_READY_TIMEOUT = timedelta(seconds=300)  # from its start until a notebook answers


# -- work ----------------------------------------------------------------------------------------------------------------


def stop_after_notice(now: datetime) -> None:
    """Work whose notice is over is told to stop."""
    due = Command.objects.filter(verb=Command.Verb.NOTICE, done_at__isnull=True, stop_at__lte=now)
    for pk in (
        due.filter(run__workload__state=WorkloadState.NOTICE)
        .values_list("run__workload_id", flat=True)
        .distinct()
    ):
        with transaction.atomic():
            workload = locks.workloads([pk])[pk]
            if workload.state == WorkloadState.NOTICE:
                commands.order_stop(
                    workload, code=workload.stop_requested, grace_seconds=workload.pool.grace_seconds, now=now
                )


def stop_at_time_limits(now: datetime) -> None:
    """Work that has run as long as it may is told to stop."""
    limit = ExpressionWrapper(F("max_runtime_seconds") * Value(ONE_SECOND), output_field=DurationField())
    running = Workload.objects.filter(
        state__in=(WorkloadState.RUNNING, WorkloadState.NOTICE), runs__attempt=F("attempt")
    )
    due = running.annotate(since=Min(Coalesce("runs__running_at", "runs__placed_at")), limit=limit)
    for workload in due.filter(since__lte=now - F("limit")):
        request_stop(workload, code=ReasonCode.TIME_LIMIT, now=now)


def requeue_late_starts(now: datetime) -> None:
    """Work that a living host has not begun to start for too long is taken back from it, and tried again; a gang also where its
    other hosts have begun: they wait for this one."""
    beginning = (WorkloadState.PLACED, WorkloadState.STARTING)
    late = Command.objects.filter(
        verb=Command.Verb.START,
        done_at__isnull=True,
        created_at__lte=now - START_TIMEOUT,
        run__state=RunState.PLACED,
        host__lease_state=LeaseState.ALIVE,
    )
    mute = late.filter(run__workload__state__in=beginning)
    for pk in mute.values_list("run__workload_id", flat=True).distinct():
        with transaction.atomic():
            workload = locks.workloads([pk])[pk]
            if workload.state in beginning and mute.filter(run__workload=workload).exists():
                grace = workload.pool.grace_seconds
                commands.order_stop(workload, code=ReasonCode.START_FAILED, grace_seconds=grace, now=now)


def stop_unready_notebooks(now: datetime) -> None:
    """A notebook that runs and has not answered for too long is stopped: nobody can use it, and nothing else would end it."""
    mute = Run.objects.filter(
        state=RunState.RUNNING,
        running_at__lte=now - NOTEBOOK_READY_TIMEOUT,
        ready_at__isnull=True,
        workload__kind=WorkloadKind.NOTEBOOK,
        workload__state=WorkloadState.RUNNING,
    )
    for workload in Workload.objects.filter(pk__in=mute.values("workload_id")).order_by("pk"):
        request_stop(workload, code=ReasonCode.START_FAILED, now=now)


# -- reservations --------------------------------------------------------------------------------------------------------


# -- hosts ---------------------------------------------------------------------------------------------------------------
