"""Arrays of jobs as one line each: how many of their tasks wait, run and ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Count, Exists, Min, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce

from portal import policy
from portal.models import User
from scheduler.core.reasons import Code
from scheduler.models import JobArray, Workload
from scheduler.states import WorkloadState

WAITS = Q(tasks__state=WorkloadState.QUEUED)
ENDED = Q(tasks__state=WorkloadState.ENDED)
FINISHED = ENDED & Q(tasks__outcome=Code.FINISHED)
CANCELLED = ENDED & Q(tasks__outcome__in=(Code.CANCELLED, Code.DEPENDENCY_NEVER_MET))


def with_counts(rows: QuerySet[JobArray]) -> QuerySet[Any]:
    """Adds ``tasks_all`` and, of these, ``waiting``, ``running`` (anything between), ``finished``, ``cancelled``, ``failed``."""
    return rows.annotate(
        tasks_all=Count("tasks"),
        waiting=Count("tasks", filter=WAITS),
        running=Count("tasks", filter=~WAITS & ~ENDED),
        finished=Count("tasks", filter=FINISHED),
        cancelled=Count("tasks", filter=CANCELLED),
        failed=Count("tasks", filter=ENDED & ~FINISHED & ~CANCELLED),
    )


def own_open(user: User) -> QuerySet[JobArray]:
    """A person's arrays of which a task has not ended, the latest first."""
    left = Workload.objects.filter(array=OuterRef("pk")).exclude(state=WorkloadState.ENDED)
    return policy.visible_arrays(user).filter(Exists(left), owner=user).order_by("-created_at", "-pk")


def one_line_each(rows: QuerySet[Workload]) -> QuerySet[Workload]:
    """Of each array in ``rows`` only its first task that has not ended, else its first; everything else as it is."""
    left = Min("pk", filter=~Q(state=WorkloadState.ENDED))
    firsts = (
        rows.filter(array__isnull=False)
        .order_by()
        .values("array")
        .annotate(first=Coalesce(left, Min("pk")))
        .values("first")
    )
    return rows.filter(Q(array=None) | Q(pk__in=firsts))


def counts_of(workloads: Iterable[Workload]) -> dict[int, Any]:
    """The arrays, with their counts, that these workloads are tasks of. One query, or none."""
    ids = {workload.array_id for workload in workloads if workload.array_id is not None}
    return {array.pk: array for array in with_counts(JobArray.objects.filter(pk__in=ids))} if ids else {}


def in_words(array: Any) -> str:
    """``10 tasks: 4 running, 5 waiting, 1 finished``; of one that came with its counts."""
    parts = (
        (array.running, "running"),
        (array.waiting, "waiting"),
        (array.finished, "finished"),
        (array.cancelled, "cancelled"),
        (array.failed, "failed"),
    )
    said = ", ".join(f"{count} {word}" for count, word in parts if count)
    return f"{array.tasks_all} tasks: {said}"
