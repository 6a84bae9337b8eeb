"""When a dependency on other work, or on a whole array of it, is met."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Count, Q

from scheduler.core.reasons import ReasonCode, ReasonNumbers
from scheduler.models import Dependency, JobArray, Workload
from scheduler.state.states import WorkloadState

DependencySpecs = Iterable[
    tuple[str, Workload | JobArray]
]  # condition (``Dependency.Condition``), and what it is about


@dataclass(frozen=True, slots=True)
class ArrayProgress:
    """How far an array has come: tasks that have not ended, and tasks that ended otherwise than by finishing."""

    open: int
    unsuccessful: int


@dataclass(frozen=True, slots=True)
class DependencyState:
    """One dependency as it stands. ``is_met`` is None while that can't be said yet."""

    condition: str
    on: Workload | JobArray
    met: bool | None


def is_met(condition: str, outcome: str) -> bool:
    """Is a condition met by work that has ended with this outcome?"""
    finished = outcome == ReasonCode.FINISHED
    return {Dependency.Condition.OK: finished, Dependency.Condition.NOT_OK: not finished}.get(
        Dependency.Condition(condition), True
    )


def is_met_by_array(condition: str, tasks: ArrayProgress) -> bool | None:
    """Is a condition met by an array? None while that can't be said yet: only that not all finish is known before the end."""
    if condition == Dependency.Condition.OK and tasks.unsuccessful:
        return False
    if tasks.open:
        return None
    return condition != Dependency.Condition.NOT_OK or tasks.unsuccessful > 0


def array_progress(arrays: Collection[int]) -> dict[int, ArrayProgress]:
    """How far arrays have come, by id. One query; none for none."""
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
    """How what was asked for stands."""
    pairs = list(after)
    tasks = array_progress({on.pk for _, on in pairs if isinstance(on, JobArray)})
    found = []
    for condition, on in pairs:
        if isinstance(on, JobArray):
            answer = is_met_by_array(condition, tasks.get(on.pk, ArrayProgress(0, 0)))
        else:
            answer = is_met(condition, on.outcome) if on.state == WorkloadState.ENDED else None
        found.append(DependencyState(condition, on, answer))
    return found


def awaited_ids(given: Iterable[DependencyState]) -> tuple[list[int], list[int]]:
    """Ids of the workloads and of the arrays that are still waited for."""
    waiting = [link.on for link in given if not link.met]
    return (
        sorted({on.pk for on in waiting if isinstance(on, Workload)}),
        sorted({on.pk for on in waiting if isinstance(on, JobArray)}),
    )


def first_never_met(after: DependencySpecs) -> Workload | JobArray | None:
    """The first that has ended otherwise than it had to, or of which a task has."""
    return next((link.on for link in dependency_states(after) if link.met is False), None)


def dependency_numbers(workloads: Sequence[int], arrays: Sequence[int]) -> ReasonNumbers:
    """Of the reason why it waits: the first workload, else the first array, and how many there are in all."""
    first = ("workload", workloads[0]) if workloads else ("array", arrays[0])
    return first, ("workloads", len(workloads) + len(arrays))
