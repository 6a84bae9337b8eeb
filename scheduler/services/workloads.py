"""Queue, change and stop notebooks and jobs."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser as Person
from django.db import transaction

from scheduler.coordination import locks
from scheduler.core.promises import extensions
from scheduler.core.reasons import ReasonCode
from scheduler.core.rejection import OperationRejected
from scheduler.cycle import core_values, snapshot
from scheduler.models import Dependency, JobArray, Pool, Workload
from scheduler.queue.dependencies import DependencyState, awaited_ids, dependency_states
from scheduler.queue.queue_limits import queue_limit_exceeded_locked
from scheduler.queue.runtime_prediction import predict_runtime_seconds
from scheduler.requests import WorkloadRequest
from scheduler.runs import commands
from scheduler.runs.retry_policy import LOST_CODES, REQUEUE_CODES
from scheduler.services.removed_rows import reject_if_removed
from scheduler.services.unix_identities import identity_of_new_work
from scheduler.state import nudge
from scheduler.state.states import WorkloadState, change_state, change_states

CHANGEABLE_STATES = (
    WorkloadState.QUEUED,
    WorkloadState.PLACED,
    WorkloadState.STARTING,
    WorkloadState.RUNNING,
)


@transaction.atomic
def queue_workload(request: WorkloadRequest, *, owner: Person, now: datetime) -> Workload:
    """Put the requested workload into its pool's queue.

    The runtime is predicted only now, and never again. Raises OperationRejected ``too_many_waiting`` or
    ``pool_or_team_is_removed``.
    """
    _reject_over_queue_limit(request, owner, 1)
    linked = dependency_states(request.after)
    reject_if_removed(request.pool, request.project)
    workload = _unsaved_workload(request, owner, linked, now)
    workload.save(force_insert=True)
    _create_dependencies([workload], linked, now)
    nudge.engine()
    nudge.pages(nudge.QUEUE, nudge.workload_topic(workload.public_id))
    return workload


@transaction.atomic
def queue_array(
    request: WorkloadRequest,
    *,
    indices: Sequence[int],
    words: str,
    most_at_once: int | None,
    owner: Person,
    now: datetime,
) -> JobArray:
    """Queue one job per index. A job's name is NAME[INDEX].

    At most ``most_at_once`` jobs run at the same time. The other jobs are held back in the queue. ``words``
    is the text of the indices as the user wrote it. Raises the rejections of ``queue_workload``. After a
    rejection no job is queued.
    """
    _reject_over_queue_limit(request, owner, len(indices))
    linked = dependency_states(request.after)
    reject_if_removed(request.pool, request.project)
    array = JobArray.objects.create(
        project=request.project,
        pool=request.pool,
        owner_id=owner.pk,
        name=request.name,
        indices=words,
        most_at_once=most_at_once,
        created_at=now,
    )
    first = _unsaved_workload(request, owner, linked, now)
    tasks = []
    for place, index in enumerate(indices):
        task = copy.copy(first)
        task.public_id, task.name = uuid.uuid4(), f"{request.name[:70]}[{index}]"
        task.array, task.array_index = array, index
        task.held_back = most_at_once is not None and place >= most_at_once
        tasks.append(task)
    Workload.objects.bulk_create(tasks)
    _create_dependencies(tasks, linked, now)
    nudge.engine()
    nudge.pages(nudge.QUEUE)
    return array


def _reject_over_queue_limit(request: WorkloadRequest, owner: Person, more: int) -> None:
    numbers = queue_limit_exceeded_locked(
        request.pool, person=owner.pk, team=request.project.team_id, more=more
    )
    if numbers is not None:
        raise OperationRejected(ReasonCode.TOO_MANY_WAITING, numbers)


@transaction.atomic
def cancel_array(array: JobArray, *, now: datetime) -> int:
    """Cancel every waiting task of an array and stop every running task. Return the number of these tasks."""
    open_tasks = list(array.tasks.exclude(state=WorkloadState.ENDED).values_list("pk", flat=True))
    # Lock all tasks at once, in the order of their ids. The engine locks several workloads in this order, so
    # another order could cause a deadlock.
    rows = locks.workloads(open_tasks).values()
    queued = [row for row in rows if row.state == WorkloadState.QUEUED]
    cancelled = change_states(
        queued,
        "state",
        old=WorkloadState.QUEUED,
        new=WorkloadState.ENDED,
        ended_at=now,
        outcome=str(ReasonCode.CANCELLED),
        earmarked_units=[],
        position=None,
        expected_start=None,
        held_back=False,
    )
    live = [row for row in rows if row.state not in (WorkloadState.QUEUED, WorkloadState.ENDED)]
    cancelled += sum(request_stop(task, code=ReasonCode.CANCELLED, now=now) for task in live)
    nudge.engine()
    nudge.pages(nudge.QUEUE)
    return cancelled


def _create_dependencies(
    workloads: Sequence[Workload], after: Sequence[DependencyState], now: datetime
) -> None:
    """Create the dependency rows of new workloads.

    The engine later ends a workload if one of its dependencies can no longer be met.
    """
    Dependency.objects.bulk_create(
        Dependency(
            workload=workload,
            on=link.on if isinstance(link.on, Workload) else None,
            on_array=link.on if isinstance(link.on, JobArray) else None,
            condition=link.condition,
            settled_at=now if link.met else None,
        )
        for workload in workloads
        for link in after
    )


def _unsaved_workload(
    request: WorkloadRequest, owner: Person, after: Sequence[DependencyState], now: datetime
) -> Workload:
    """Return the unsaved row of a new workload."""
    waits_for, waits_for_arrays = awaited_ids(after)
    return Workload(
        **request.columns(),
        owner_id=owner.pk,
        unix_identity=identity_of_new_work(request.pool, owner),
        predicted_seconds=predict_runtime_seconds(
            pool=request.pool,
            team=request.project.team,
            owner_id=owner.pk,
            total_units=request.units * request.hosts,
            max_runtime_seconds=request.max_runtime_seconds,
        ),
        submitted_at=now,
        queued_at=now,
        waits_for=waits_for,
        waits_for_arrays=waits_for_arrays,
    )


def cancel_workload(workload: Workload, *, now: datetime) -> bool:
    """Remove a workload from the queue, or stop it.

    Return False if the workload has ended, or if it is already stopping and would not be requeued.
    """
    return request_stop(workload, code=ReasonCode.CANCELLED, now=now)


@transaction.atomic
def request_stop(workload: Workload, *, code: str, now: datetime) -> bool:
    """Make a workload end with ``code``. A queued workload ends at once. Other work gets a stop command.

    A workload that is already stopping and would be requeued ends with ``code`` instead. Return True if this
    call makes the workload end with ``code``.
    """
    fresh = locks.workloads([workload.pk])[workload.pk]
    if fresh.state == WorkloadState.QUEUED:
        done = end_queued_workload(fresh, code=code, now=now)
    elif fresh.state == WorkloadState.STOPPING:
        done = _cancel_requeue(fresh, code)
        commands.stop_remaining(commands.live_runs(fresh), code=code, now=now)
    else:
        done = commands.order_stop(fresh, code=code, grace_seconds=_grace(fresh), now=now)
        done = done and (fresh.stop_requested == code or _cancel_requeue(fresh, code))
    _copy_fields(workload, fresh)
    return done


@transaction.atomic
def stop_unused_work(pk: int, *, now: datetime) -> bool:
    """Give a running workload notice, because it does not use its GPUs. Return False if it is left as it is.

    The workload gets the notice and the grace period of its pool, in which it can write a checkpoint. It then
    ends, and is not requeued. Work that is not running, or whose owner keeps it for now, is left as it is.
    """
    workload = locks.workloads([pk])[pk]
    if workload.state != WorkloadState.RUNNING or (workload.keep_until and workload.keep_until > now):
        return False
    return commands.give_notice(
        workload,
        code=ReasonCode.IDLE,
        stop_at=now + timedelta(seconds=workload.pool.notice_seconds),
        grace_seconds=workload.pool.grace_seconds,
        now=now,
    )


def end_queued_workload(
    workload: Workload, *, code: str, now: datetime, numbers: Mapping[str, Any] | None = None
) -> bool:
    """End a queued workload. Return False if it is not queued. The caller has opened a transaction."""
    if not change_state(
        workload,
        "state",
        old=WorkloadState.QUEUED,
        new=WorkloadState.ENDED,
        ended_at=now,
        outcome=str(code),
        outcome_numbers=dict(numbers or {}),
        held_back=False,
        earmarked_units=[],
        position=None,
        expected_start=None,
    ):
        return False
    nudge.engine()
    nudge.pages(nudge.QUEUE, nudge.workload_topic(workload.public_id))
    return True


def _cancel_requeue(workload: Workload, code: str) -> bool:
    """Make a stopping workload end with ``code`` if it would otherwise be requeued.

    A workload that stops because a member of its gang ended has an empty stop request. Such a workload may be
    requeued as well. Return False if the workload would end without this call.
    """
    requeue_requests = ("", *REQUEUE_CODES, *LOST_CODES)
    changed = Workload.objects.filter(pk=workload.pk, stop_requested__in=requeue_requests).update(
        stop_requested=str(code)
    )
    if changed:
        workload.stop_requested = str(code)
    return bool(changed)


@transaction.atomic
def extend_workload(workload: Workload, *, seconds: int, now: datetime) -> bool:
    """Extend the maximum runtime by ``seconds``.

    Return False if the workload has a notice, is stopping, or has ended.

    Raises OperationRejected ``over_runtime_cap`` if the new runtime exceeds the pool's longest runtime,
    because such a workload could not start again after an eviction. Raises ``more_time_blocked`` if the
    workload is not preemptible and a reservation or a maintenance window needs its units.
    """
    locks.pools([workload.pool_id])
    fresh = locks.workloads([workload.pk])[workload.pk]
    if fresh.state not in CHANGEABLE_STATES or fresh.stop_requested:
        return False
    asked, longest = fresh.max_runtime_seconds + seconds, fresh.pool.longest_runtime_seconds
    if asked > longest:
        raise OperationRejected(ReasonCode.OVER_RUNTIME_CAP, (("asked", asked), ("longest", longest)))
    _reject_broken_promises(fresh, seconds, now)
    fresh.max_runtime_seconds += seconds
    fresh.save(update_fields=["max_runtime_seconds"])
    _copy_fields(workload, fresh)
    nudge.engine()
    nudge.hosts(run.host_id for run in commands.live_runs(fresh))
    nudge.pages(nudge.workload_topic(workload.public_id))
    return True


def _reject_broken_promises(workload: Workload, seconds: int, now: datetime) -> None:
    """Raise OperationRejected if a longer runtime breaks a reservation or overlaps a maintenance window.

    Only work that is not preemptible is checked, because it holds its units until its time limit. Queued work
    and work inside a reservation are not checked. The caller has locked the pool, so no reservation can be
    confirmed meanwhile.
    """
    if workload.preemptible or workload.reservation_id is not None or workload.state == WorkloadState.QUEUED:
        return
    taken = snapshot.take_snapshot([workload.pool_id], now)
    until = next((r.until for r in taken.running if r.id == workload.pk), None)
    if until is None:
        return
    answer = extensions.check_longer_runtime(
        taken, workload.pk, until + seconds, core_values.epoch_seconds(now)
    )
    if not answer.fits:
        raise OperationRejected(answer.code, answer.numbers)


@transaction.atomic
def postpone_idle_stop(workload: Workload, *, until: datetime) -> bool:
    """Keep an idle workload from being stopped before ``until``, and withdraw the idle warning.

    Return False if the workload has a notice, is stopping, or has ended.
    """
    alive = Workload.objects.filter(pk=workload.pk, state__in=CHANGEABLE_STATES, stop_requested="")
    changed = alive.update(keep_until=until, idle_warned_at=None)
    nudge.pages(nudge.workload_topic(workload.public_id))
    return bool(changed)


@transaction.atomic
def record_idle_warning(workload: Workload, *, at: datetime | None) -> bool:
    """Record that the owner was warned at ``at`` that the workload is idle. None withdraws the warning.

    Return False if nothing changed.
    """
    running = Workload.objects.filter(pk=workload.pk, state=WorkloadState.RUNNING)
    changed = running.filter(idle_warned_at__isnull=at is not None).update(idle_warned_at=at)
    nudge.pages(nudge.workload_topic(workload.public_id))
    return bool(changed)


def _grace(workload: Workload) -> int:
    return Pool.objects.values_list("grace_seconds", flat=True).get(pk=workload.pool_id)


def _copy_fields(target: Workload, fresh: Workload) -> None:
    for name in ("state", "stop_requested", "outcome", "ended_at", "gone_by", "max_runtime_seconds"):
        setattr(target, name, getattr(fresh, name))
