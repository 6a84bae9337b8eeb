"""Stop workloads whose notice, time limit or start timeout has passed."""

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
START_TIMEOUT = timedelta(seconds=120)  # from placement until the agent reports the run
NOTEBOOK_READY_TIMEOUT = timedelta(seconds=300)  # from a notebook's start until it answers


def stop_after_notice(now: datetime) -> None:
    """Stop workloads whose notice period has ended."""
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
    """Stop workloads that have reached their maximum runtime."""
    limit = ExpressionWrapper(F("max_runtime_seconds") * Value(ONE_SECOND), output_field=DurationField())
    running = Workload.objects.filter(
        state__in=(WorkloadState.RUNNING, WorkloadState.NOTICE), runs__attempt=F("attempt")
    )
    due = running.annotate(since=Min(Coalesce("runs__running_at", "runs__placed_at")), limit=limit)
    for workload in due.filter(since__lte=now - F("limit")):
        request_stop(workload, code=ReasonCode.TIME_LIMIT, now=now)


def requeue_late_starts(now: datetime) -> None:
    """Stop workloads that a live host has not started within ``START_TIMEOUT``.

    A stopped job is requeued after its end. All members of a gang are stopped, because the members that have
    started wait for the late member.
    """
    starting_states = (WorkloadState.PLACED, WorkloadState.STARTING)
    late = Command.objects.filter(
        verb=Command.Verb.START,
        done_at__isnull=True,
        created_at__lte=now - START_TIMEOUT,
        run__state=RunState.PLACED,
        host__lease_state=LeaseState.ALIVE,
    )
    unstarted = late.filter(run__workload__state__in=starting_states)
    for pk in unstarted.values_list("run__workload_id", flat=True).distinct():
        with transaction.atomic():
            workload = locks.workloads([pk])[pk]
            if workload.state in starting_states and unstarted.filter(run__workload=workload).exists():
                grace = workload.pool.grace_seconds
                commands.order_stop(workload, code=ReasonCode.START_FAILED, grace_seconds=grace, now=now)


def stop_unready_notebooks(now: datetime) -> None:
    """Stop notebooks that run but have not answered within ``NOTEBOOK_READY_TIMEOUT``.

    No user can reach such a notebook.
    """
    unready = Run.objects.filter(
        state=RunState.RUNNING,
        running_at__lte=now - NOTEBOOK_READY_TIMEOUT,
        ready_at__isnull=True,
        workload__kind=WorkloadKind.NOTEBOOK,
        workload__state=WorkloadState.RUNNING,
    )
    for workload in Workload.objects.filter(pk__in=unready.values("workload_id")).order_by("pk"):
        request_stop(workload, code=ReasonCode.START_FAILED, now=now)
