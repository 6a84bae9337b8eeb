"""Read job arrays as one row each, with the numbers of their tasks by state."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
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
    """Annotate arrays with task counts and times.

    ``tasks_all`` is the sum of ``waiting``, ``running`` (neither waiting nor ended), ``finished``,
    ``cancelled`` and ``failed``. ``began`` is the first start and ``over`` the last end of a task.
    ``expected`` is the earliest expected start of a waiting task. ``waits_since`` is the earliest time at
    which a waiting task was queued.
    """
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
    """Return a person's arrays with open tasks, latest first."""
    left = Workload.objects.filter(array=OuterRef("pk")).exclude(state=WorkloadState.ENDED)
    return policy.visible_arrays(user).filter(Exists(left), owner=user).order_by("-created_at", "-pk")


def first_open_task_only(rows: QuerySet[Workload]) -> QuerySet[Workload]:
    """Keep one task of each array, and every workload that belongs to no array.

    The task is the first that has not ended. If all tasks have ended, it is the first task.
    """
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
    """Keep the first task of each array whose tasks have all ended.

    Every workload that belongs to no array is kept too.
    """
    left = Workload.objects.filter(array=OuterRef("array")).exclude(state=WorkloadState.ENDED)
    return first_open_task_only(rows.filter(~Exists(left)))


@dataclass
class JobArrayTotals:
    """The totals of an array. None means unknown.

    ``row`` is the array with its task counts. ``held`` lists the units that the tasks hold now, as (model,
    profile, number of units). ``use`` is the mean of the tasks' last utilisation (0 to 1). ``cost`` is the
    cost of all tasks so far. It is None if ``cost_hidden``: the viewer may not see the charges.
    """

    row: Any
    held: list[tuple[str, str, int]] = field(default_factory=list)
    simulated: bool = False
    use: float | None = None
    cost: cost_totals.CurrencySums | None = None
    cost_hidden: bool = False

    @property
    def state(self) -> str:
        """Return one state for the whole array.

        It is running if any task runs, otherwise waiting if any task waits. After the end, it is "failed" if
        any task failed, otherwise "ended" if any task finished, otherwise "cancelled".
        """
        row = self.row
        if row.running or row.waiting:
            return WorkloadState.RUNNING if row.running else WorkloadState.QUEUED
        return "failed" if row.failed else "ended" if row.finished else "cancelled"


def array_totals(workloads: Iterable[Workload], viewer: User, now: datetime) -> dict[int, JobArrayTotals]:
    """Return the totals of the arrays to which these workloads belong, by array id.

    The number of queries is fixed. It is zero if no workload belongs to an array.
    """
    ids = {workload.array_id for workload in workloads if workload.array_id is not None}
    if not ids:
        return {}
    rows = with_task_counts(JobArray.objects.filter(pk__in=ids)).select_related("project")
    found = {row.pk: JobArrayTotals(row) for row in rows}
    held = Allocation.objects.filter(workload__array__in=ids, period__upper_inf=True)
    columns = ("workload__array_id", "unit__gpu__model", "unit__profile", "unit__gpu__host__simulated")
    for array, model, profile, simulated, count in (
        held.values_list(*columns).annotate(n=Count("pk")).order_by(*columns)
    ):
        found[array].held.append((model, profile, count))
        found[array].simulated |= simulated
    may_see = policy.charge_right(viewer)
    seen = {pk for pk, whole in found.items() if may_see(whole.row)}
    costs = cost_totals.workload_costs(seen, now, cost_totals.prices(now), of="workload__array")
    for pk, share in _latest_usage(ids, now).items():
        found[pk].use = share
    for pk, whole in found.items():
        whole.cost, whole.cost_hidden = costs.get(pk), pk not in seen
    return found


def _latest_usage(ids: Collection[int], now: datetime) -> dict[int, float]:
    """Return the last utilisation (0 to 1) of each array, by id: the mean over tasks that have a reading."""
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


def arrays_started_between(since: datetime, until: datetime) -> list[tuple[Any, Run]]:
    """Return (array, run) for each array that started after ``since``, and at ``until`` or before.

    ``run`` is the run of the task that started first. The array has the task counts of ``with_task_counts``.
    Simulated workloads do not count.
    """
    runs = Run.objects.filter(rank=0, workload__array__isnull=False, workload__simulated=False)
    earlier = runs.filter(workload__array=OuterRef("workload__array"), running_at__lte=since)
    fresh = runs.filter(~Exists(earlier), running_at__gt=since, running_at__lte=until)
    firsts: dict[int, Run] = {}
    for run in fresh.select_related("workload__array", "host").order_by("running_at", "pk"):
        firsts.setdefault(run.workload.array_id or 0, run)
    rows = with_task_counts(JobArray.objects.filter(pk__in=firsts)).order_by("pk") if firsts else []
    return [(row, firsts[row.pk]) for row in rows]


def arrays_ended_between(since: datetime, until: datetime) -> list[tuple[Any, Workload]]:
    """Return (array, task) for each array in which at least one task ended in this period.

    ``task`` is the last task that failed in the period. If none failed, it is the last task that ended in the
    period. The array has the task counts of ``with_task_counts``. Simulated workloads do not count.
    """
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
    """Return a text such as ``10 tasks: 4 running, 5 waiting, 1 finished`` for an array with task counts."""
    parts = (
        (array.running, "running"),
        (array.waiting, "waiting"),
        (array.finished, "finished"),
        (array.cancelled, "cancelled"),
        (array.failed, "failed"),
    )
    said = ", ".join(f"{count} {word}" for count, word in parts if count)
    return f"{array.tasks_all} tasks: {said}"
