"""Settle dependencies when the awaited work has ended, and release tasks of arrays up to the array's limit.

This work runs before each planning cycle. It is done once, even if it is called twice or by two processes.
The snapshot does not read dependencies. It reads the workload's columns ``waits_for``, ``waits_for_arrays``
and ``held_back``, which this module writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Count, F, Q

from scheduler.coordination import locks
from scheduler.core.reasons import ReasonCode
from scheduler.models import Dependency, JobArray, Workload
from scheduler.queue.dependencies import array_progress, dependency_states, is_met_by_array
from scheduler.services.workloads import end_queued_workload
from scheduler.state import nudge
from scheduler.state.states import WorkloadState

MAX_SETTLED_PER_CALL = 500  # workloads whose dependencies are settled in one call; the next call continues


def release_dependents(now: datetime) -> int:
    """Settle dependencies and release array tasks. Return the number of changed workloads."""
    changed = 0
    while settled := _settle_dependencies(now):  # a workload that ends in this loop may be awaited by others
        changed += settled
        if changed >= MAX_SETTLED_PER_CALL:
            break
    return changed + _release_tasks()


def _settle_dependencies(now: datetime) -> int:
    unsettled = Dependency.objects.filter(settled_at=None)
    arrays = set(unsettled.exclude(on_array=None).order_by().values_list("on_array", flat=True).distinct())
    tasks = array_progress(arrays)
    due = Q(on__state=WorkloadState.ENDED)
    for condition in Dependency.Condition:
        decided = [
            array for array, progress in tasks.items() if is_met_by_array(condition, progress) is not None
        ]
        due |= Q(on_array__in=decided, condition=condition) if decided else Q()
    ids = unsettled.filter(due).order_by("workload_id").values_list("workload_id", flat=True)
    waiting = list(dict.fromkeys(ids[:MAX_SETTLED_PER_CALL]))
    for pk in waiting:
        with transaction.atomic():
            _settle_one(locks.workloads([pk])[pk], now)
    return len(waiting)


def _settle_one(workload: Workload, now: datetime) -> None:
    """Settle the dependencies of one locked workload whose awaited work has ended.

    End the workload if one of its conditions can no longer be met.
    """
    unsettled = list(
        Dependency.objects.filter(workload=workload, settled_at=None)
        .select_related("on", "on_array")
        .order_by("pk")
    )
    states = {
        row.pk: state
        for row, state in zip(unsettled, dependency_states(_dependency_specs(unsettled)), strict=True)
    }
    settled = [row for row in unsettled if states[row.pk].met is not None]
    unmet = next((row for row in settled if not states[row.pk].met), None)
    if unmet is not None and workload.state == WorkloadState.QUEUED:
        end_queued_workload(
            workload, code=ReasonCode.DEPENDENCY_NEVER_MET, now=now, numbers=_never_met_numbers(unmet)
        )
    ended, ended_arrays = {row.on_id for row in settled}, {row.on_array_id for row in settled}
    Workload.objects.filter(pk=workload.pk).update(
        waits_for=[pk for pk in workload.waits_for if pk not in ended],
        waits_for_arrays=[pk for pk in workload.waits_for_arrays if pk not in ended_arrays],
    )
    Dependency.objects.filter(pk__in=[row.pk for row in settled]).update(settled_at=now)
    nudge.engine()
    nudge.pages(nudge.QUEUE, nudge.workload_topic(workload.public_id))


def _dependency_specs(rows: Iterable[Dependency]) -> list[tuple[str, Workload | JobArray]]:
    """Return the rows as pairs of a condition and the awaited workload or array."""
    specs = []
    for row in rows:
        on = row.on or row.on_array
        assert on is not None, "a check constraint requires one of the two"
        specs.append((row.condition, on))
    return specs


def _never_met_numbers(unmet: Dependency) -> dict[str, Any]:
    """Return the numbers of the reason: the awaited workload or array, the condition and the outcome.

    The outcome of an array is the outcome of its first unsuccessful task.
    """
    if unmet.on is not None:
        return {"workload": unmet.on_id, "condition": unmet.condition, "outcome": unmet.on.outcome}
    tasks = Workload.objects.filter(array=unmet.on_array_id, state=WorkloadState.ENDED).order_by(
        "array_index", "pk"
    )
    failed_outcome = tasks.exclude(outcome=str(ReasonCode.FINISHED)).values_list("outcome", flat=True).first()
    return {
        "array": unmet.on_array_id,
        "condition": unmet.condition,
        "outcome": failed_outcome or str(ReasonCode.FINISHED),
    }


def _release_tasks() -> int:
    """Release held-back tasks of each array, up to the array's limit of open tasks. Return their number."""
    holding = Workload.objects.filter(held_back=True).values("array")
    released = Count("tasks", filter=~Q(tasks__state=WorkloadState.ENDED) & Q(tasks__held_back=False))
    arrays = JobArray.objects.filter(pk__in=holding).annotate(open_tasks=released)
    below_limit = Q(most_at_once=None) | Q(open_tasks__lt=F("most_at_once"))
    return sum(_release_tasks_of(pk) for pk in arrays.filter(below_limit).values_list("pk", flat=True))


@transaction.atomic
def _release_tasks_of(pk: int) -> int:
    array = locks.arrays([pk])[pk]
    open_tasks = array.tasks.filter(held_back=False).exclude(state=WorkloadState.ENDED).count()
    held = array.tasks.filter(held_back=True, state=WorkloadState.QUEUED).order_by("array_index", "pk")
    limit = None if array.most_at_once is None else max(0, array.most_at_once - open_tasks)
    released = list(held.values_list("pk", flat=True)[:limit])
    changed = Workload.objects.filter(pk__in=released, held_back=True).update(held_back=False)
    if changed:
        nudge.engine()
        nudge.pages(nudge.QUEUE)
    return changed
