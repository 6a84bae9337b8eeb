"""Arrays of jobs as one line each: how many of their tasks wait, run and ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import Count, Exists, Max, Min, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce

from portal import policy
from portal.models import User
from portal.reads.money import cost_totals
from portal.reads.work import utilisation
from scheduler.core.reasons import ReasonCode
from scheduler.models import Allocation, JobArray, Run, Workload
from scheduler.state.states import WorkloadState

WAITS = Q(tasks__state=WorkloadState.QUEUED)
ENDED = Q(tasks__state=WorkloadState.ENDED)
FINISHED = ENDED & Q(tasks__outcome=ReasonCode.FINISHED)
CANCELLED = ENDED & Q(tasks__outcome__in=(ReasonCode.CANCELLED, ReasonCode.DEPENDENCY_NEVER_MET))


def with_task_counts(rows: QuerySet[JobArray]) -> QuerySet[Any]:
    """Adds ``tasks_all`` and, of these, ``waiting``, ``running`` (anything between), ``finished``, ``cancelled``, ``failed``; and
    when the first of them ``began`` and is ``expected`` to start, ``waits_since`` and when the last was ``over``."""
    return rows.annotate(
        began=Min("tasks__started_at"),
        over=Max("tasks__ended_at"),
        expected=Min("tasks__expected_start", filter=WAITS),
        waits_since=Min("tasks__queued_at", filter=WAITS),
        tasks_all=Count("tasks"),
        waiting=Count("tasks", filter=WAITS),
        running=Count("tasks", filter=~WAITS & ~ENDED),
        finished=Count("tasks", filter=FINISHED),
        cancelled=Count("tasks", filter=CANCELLED),
        failed=Count("tasks", filter=ENDED & ~FINISHED & ~CANCELLED),
    )


def own_open_arrays(user: User) -> QuerySet[JobArray]:
    """A person's arrays of which a task has not ended, the latest first."""
    left = Workload.objects.filter(array=OuterRef("pk")).exclude(state=WorkloadState.ENDED)
    return policy.visible_arrays(user).filter(Exists(left), owner=user).order_by("-created_at", "-pk")


def first_open_task_only(rows: QuerySet[Workload]) -> QuerySet[Workload]:
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


def first_ended_task_only(rows: QuerySet[Workload]) -> QuerySet[Workload]:
    """The same of tasks that have ended, without those of arrays of which another task has not."""
    left = Workload.objects.filter(array=OuterRef("array")).exclude(state=WorkloadState.ENDED)
    return first_open_task_only(rows.filter(~Exists(left)))


@dataclass
class JobArrayTotals:
    """An array as one thing. ``row`` came with its counts; ``held``: (model, profile, how many units) that its tasks hold now;
    ``workload_usage``: mean of its tasks' last readings, a share of 1; ``cost`` of all tasks so far. None is unknown."""

    row: Any
    held: list[tuple[str, str, int]] = field(default_factory=list)
    simulated: bool = False
    use: float | None = None
    cost: Decimal | None = None

    @property
    def state(self) -> str:
        """A state of a workload that says it for all: what runs, else what waits, else how the worst of it ended."""
        row = self.row
        if row.running or row.waiting:
            return WorkloadState.RUNNING if row.running else WorkloadState.QUEUED
        return "failed" if row.failed else "ended" if row.finished else "cancelled"


def array_totals(workloads: Iterable[Workload], now: datetime) -> dict[int, JobArrayTotals]:
    """The arrays that these workloads are tasks of, each with its totals. A fixed number of queries, or none."""
    ids = {workload.array_id for workload in workloads if workload.array_id is not None}
    if not ids:
        return {}
    found = {row.pk: JobArrayTotals(row) for row in with_task_counts(JobArray.objects.filter(pk__in=ids))}
    held = Allocation.objects.filter(workload__array__in=ids, period__upper_inf=True)
    columns = ("workload__array_id", "unit__gpu__model", "unit__profile", "unit__gpu__host__simulated")
    for array, model, profile, simulated, count in (
        held.values_list(*columns).annotate(n=Count("pk")).order_by(*columns)
    ):
        found[array].held.append((model, profile, count))
        found[array].simulated |= simulated
    costs = cost_totals.workload_costs(ids, now, cost_totals.prices(now), of="workload__array")
    for pk, share in _latest_usage(ids, now).items():
        found[pk].use = share
    for pk, whole in found.items():
        whole.cost = costs.get(pk)
    return found


def _latest_usage(ids: Collection[int], now: datetime) -> dict[int, float]:
    """The mean of the last readings of what each array's tasks hold."""
    places = Allocation.objects.filter(workload__array__in=ids, period__upper_inf=True).values_list(
        "workload_id", "workload__array_id", "unit__gpu__host_id"
    )
    array_of = {workload: array for workload, array, _ in places}
    shares: dict[int, list[float]] = {}
    for workload, (share, _) in utilisation.latest_utilisation(
        list(array_of), {host for _, _, host in places}, now
    ).items():
        if share is not None:
            shares.setdefault(array_of[workload], []).append(share)
    return {array: sum(some) / len(some) for array, some in shares.items()}


# -- what notices tell of ----------------------------------------------------------------------------------------------


def arrays_started_between(since: datetime, until: datetime) -> list[tuple[Any, Run]]:
    """Arrays of which the first task began to run after ``since``, and its run."""
    runs = Run.objects.filter(rank=0, workload__array__isnull=False, workload__simulated=False)
    earlier = runs.filter(workload__array=OuterRef("workload__array"), running_at__lte=since)
    fresh = runs.filter(~Exists(earlier), running_at__gt=since, running_at__lte=until)
    firsts: dict[int, Run] = {}
    for run in fresh.select_related("workload__array", "host").order_by("running_at", "pk"):
        firsts.setdefault(run.workload.array_id or 0, run)
    rows = with_task_counts(JobArray.objects.filter(pk__in=firsts)).order_by("pk") if firsts else []
    return [(row, firsts[row.pk]) for row in rows]


def arrays_ended_between(since: datetime, until: datetime) -> list[tuple[Any, Workload]]:
    """Arrays of which a task ended in this time, with their counts, and the task that ended last: of those that failed, if any."""
    tasks = Workload.objects.filter(
        array__isnull=False,
        simulated=False,
        state=WorkloadState.ENDED,
        ended_at__gt=since,
        ended_at__lte=until,
    )
    lasts: dict[int, Workload] = {}
    well = Q(outcome__in=(ReasonCode.FINISHED, ReasonCode.CANCELLED, ReasonCode.DEPENDENCY_NEVER_MET))
    for some in (tasks.filter(well), tasks.exclude(well)):
        lasts |= {
            task.array_id or 0: task for task in some.order_by("array", "-ended_at", "-pk").distinct("array")
        }
    rows = with_task_counts(JobArray.objects.filter(pk__in=lasts)).order_by("pk") if lasts else []
    return [(row, lasts[row.pk]) for row in rows]


def array_summary(array: Any) -> str:
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
