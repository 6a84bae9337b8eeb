"""When a dependency on other work is met."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.reasons import Code
from scheduler.models import Dependency, Workload
from scheduler.states import WorkloadState

After = Iterable[tuple[str, Workload]]  # condition (``Dependency.Condition``), and the workload it is about


def met(condition: str, outcome: str) -> bool:
    """Is a condition met by work that has ended with this outcome?"""
    finished = outcome == Code.FINISHED
    return {Dependency.Condition.OK: finished, Dependency.Condition.NOT_OK: not finished}.get(
        Dependency.Condition(condition), True
    )


def awaited(after: After) -> list[int]:
    """Ids of those that have not ended yet."""
    return sorted({workload.pk for _, workload in after if workload.state != WorkloadState.ENDED})


def never_met(after: After) -> Workload | None:
    """The first that has ended otherwise than it had to."""
    ended = (pair for pair in after if pair[1].state == WorkloadState.ENDED)
    return next((workload for condition, workload in ended if not met(condition, workload.outcome)), None)
