"""When a dependency on other work, or on a whole array of it, is met."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Count, Q

from scheduler.core.model import Numbers
from scheduler.core.reasons import Code
from scheduler.models import Dependency, JobArray, Workload
from scheduler.states import WorkloadState

After = Iterable[tuple[str, Workload | JobArray]]  # condition (``Dependency.Condition``), and what it is about


@dataclass(frozen=True, slots=True)
class Tasks:
    """How far an array has come: tasks that have not ended, and tasks that ended otherwise than by finishing."""

    open: int
    not_finished: int


@dataclass(frozen=True, slots=True)
class Link:
    """One dependency as it stands. ``met`` is None while that can't be said yet."""

    condition: str
    on: Workload | JobArray
    met: bool | None


def met(condition: str, outcome: str) -> bool:
    """Is a condition met by work that has ended with this outcome?"""
    finished = outcome == Code.FINISHED
    return {Dependency.Condition.OK: finished, Dependency.Condition.NOT_OK: not finished}.get(
        Dependency.Condition(condition), True
    )


def met_by_tasks(condition: str, tasks: Tasks) -> bool | None:
    """Is a condition met by an array? None while that can't be said yet: only that not all finish is known before the end."""
    if condition == Dependency.Condition.OK and tasks.not_finished:
        return False
    if tasks.open:
        return None
    return condition != Dependency.Condition.NOT_OK or tasks.not_finished > 0


def tasks_of(arrays: Collection[int]) -> dict[int, Tasks]:
    """How far arrays have come, by id. One query; none for none."""
    if not arrays:
        return {}
    ended = Q(state=WorkloadState.ENDED)
    counts = (
        Workload.objects.filter(array__in=arrays)
        .values_list("array_id")
        .annotate(open=Count("pk", filter=~ended), otherwise=Count("pk", filter=ended & ~Q(outcome=str(Code.FINISHED))))
    )
    return {array: Tasks(open_, otherwise) for array, open_, otherwise in counts}


def links(after: After) -> list[Link]:
    """How what was asked for stands."""
    pairs = list(after)
    tasks = tasks_of({on.pk for _, on in pairs if isinstance(on, JobArray)})
    found = []
    for condition, on in pairs:
        if isinstance(on, JobArray):
            answer = met_by_tasks(condition, tasks.get(on.pk, Tasks(0, 0)))
        else:
            answer = met(condition, on.outcome) if on.state == WorkloadState.ENDED else None
        found.append(Link(condition, on, answer))
    return found


def awaited(given: Iterable[Link]) -> tuple[list[int], list[int]]:
    """Ids of the workloads and of the arrays that are still waited for."""
    waiting = [link.on for link in given if not link.met]
    return (
        sorted({on.pk for on in waiting if isinstance(on, Workload)}),
        sorted({on.pk for on in waiting if isinstance(on, JobArray)}),
    )


def never_met(after: After) -> Workload | JobArray | None:
    """The first that has ended otherwise than it had to, or of which a task has."""
    return next((link.on for link in links(after) if link.met is False), None)


def numbers_of(workloads: Sequence[int], arrays: Sequence[int]) -> Numbers:
    """Of the reason why it waits: the first workload, else the first array, and how many there are in all."""
    first = ("workload", workloads[0]) if workloads else ("array", arrays[0])
    return first, ("workloads", len(workloads) + len(arrays))
