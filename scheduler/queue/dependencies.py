"""Evaluate dependencies on other workloads and on job arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Count, Q

from scheduler.core.reasons import ReasonCode, ReasonNumbers
from scheduler.models import Dependency, JobArray, Workload
from scheduler.state.states import WorkloadState

# Pairs of a condition (``Dependency.Condition``) and the awaited workload or array.
DependencySpecs = Iterable[tuple[str, Workload | JobArray]]


@dataclass(frozen=True, slots=True)
class ArrayProgress:
    """The progress of an array's tasks.

    ``open`` counts the tasks that have not ended. ``unsuccessful`` counts the tasks that ended with another
    outcome than FINISHED.
    """

    open: int
    unsuccessful: int


@dataclass(frozen=True, slots=True)
class DependencyState:
    """One dependency. ``met`` is None until it is decided whether the dependency is met."""

    condition: str
    on: Workload | JobArray
    met: bool | None


def is_met(condition: str, outcome: str) -> bool:
    """Return True if work that ended with this outcome meets the condition."""
    finished = outcome == ReasonCode.FINISHED
    return {Dependency.Condition.OK: finished, Dependency.Condition.NOT_OK: not finished}.get(
        Dependency.Condition(condition), True
    )


def is_met_by_array(condition: str, tasks: ArrayProgress) -> bool | None:
    """Return whether an array meets the condition, or None while this is undecided.

    While tasks are open, only one decision is possible: if a task has ended with another outcome than
    FINISHED, ``ok`` can no longer be met.
    """
    if condition == Dependency.Condition.OK and tasks.unsuccessful:
        return False
    if tasks.open:
        return None
    return condition != Dependency.Condition.NOT_OK or tasks.unsuccessful > 0


def array_progress(arrays: Collection[int]) -> dict[int, ArrayProgress]:
    """Return the progress of arrays by array id. This takes at most one query."""
    if not arrays:
        return {}
    ended = Q(state=WorkloadState.ENDED)
    counts = (
        Workload.objects.filter(array__in=arrays)
        .values_list("array_id")
        .annotate(
            open=Count("pk", filter=~ended),
            otherwise=Count("pk", filter=ended & ~Q(outcome=str(ReasonCode.FINISHED))),
        )
    )
    return {array: ArrayProgress(open_, otherwise) for array, open_, otherwise in counts}


def dependency_states(after: DependencySpecs) -> list[DependencyState]:
    """Return the state of each dependency."""
    pairs = list(after)
    tasks = array_progress({on.pk for _, on in pairs if isinstance(on, JobArray)})
    states = []
    for condition, on in pairs:
        if isinstance(on, JobArray):
            met = is_met_by_array(condition, tasks.get(on.pk, ArrayProgress(0, 0)))
        else:
            met = is_met(condition, on.outcome) if on.state == WorkloadState.ENDED else None
        states.append(DependencyState(condition, on, met))
    return states


def awaited_ids(states: Iterable[DependencyState]) -> tuple[list[int], list[int]]:
    """Return two sorted lists: the ids of workloads and of arrays whose conditions are not met."""
    waiting = [state.on for state in states if not state.met]
    return (
        sorted({on.pk for on in waiting if isinstance(on, Workload)}),
        sorted({on.pk for on in waiting if isinstance(on, JobArray)}),
    )


def first_never_met(after: DependencySpecs) -> Workload | JobArray | None:
    """Return the workload or array of the first dependency that can no longer be met, or None."""
    return next((state.on for state in dependency_states(after) if state.met is False), None)


def dependency_numbers(workloads: Sequence[int], arrays: Sequence[int]) -> ReasonNumbers:
    """Return the numbers of the reason code DEPENDENCY.

    They are the first awaited workload, or the first awaited array if there is no workload, and the number of
    all awaited workloads and arrays.
    """
    first = ("workload", workloads[0]) if workloads else ("array", arrays[0])
    return first, ("workloads", len(workloads) + len(arrays))
