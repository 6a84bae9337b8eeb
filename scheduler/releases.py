"""What keeps waiting work from the queue until other work has ended: its dependencies, and its array's limit.

Level-triggered, over rows: called before each cycle and by the sweep, twice, late or by two processes at once, it does the
same work once. The snapshot reads only what is written here: ``waits_for`` and ``held_back`` of the workload itself.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Count, F, Q

from scheduler import locks, nudge
from scheduler.core.reasons import Code
from scheduler.dependencies import met
from scheduler.models import Dependency, JobArray, Workload
from scheduler.services.workloads import end_queued
from scheduler.states import WorkloadState

AT_ONCE = 500  # settled in one call; the next call goes on


def settle(now: datetime) -> int:
    """Bring what waits for other work up to date; how many workloads were changed."""
    changed = 0
    while some := _settle_dependencies(now):  # what ends here may be waited for itself
        changed += some
        if changed >= AT_ONCE:
            break
    return changed + _release_tasks()


def _settle_dependencies(now: datetime) -> int:
    due = Dependency.objects.filter(settled_at=None, on__state=WorkloadState.ENDED).order_by("workload_id")
    waiting = list(dict.fromkeys(due.values_list("workload_id", flat=True)[:AT_ONCE]))
    for pk in waiting:
        with transaction.atomic():
            _settle_one(locks.workloads([pk])[pk], now)
    return len(waiting)


def _settle_one(workload: Workload, now: datetime) -> None:
    """Of one locked workload: what has ended is waited for no more; when it ended otherwise than it had to, so does this one."""
    unsettled = Dependency.objects.filter(workload=workload, settled_at=None, on__state=WorkloadState.ENDED)
    ended = list(unsettled.select_related("on").order_by("on_id"))
    unmet = next((each for each in ended if not met(each.condition, each.on.outcome)), None)
    if unmet is not None and workload.state == WorkloadState.QUEUED:
        numbers = {"workload": unmet.on_id, "condition": unmet.condition, "outcome": unmet.on.outcome}
        end_queued(workload, code=Code.DEPENDENCY_NEVER_MET, now=now, numbers=numbers)
    gone = {each.on_id for each in ended}
    left = [pk for pk in workload.waits_for if pk not in gone]
    Workload.objects.filter(pk=workload.pk).update(waits_for=left)
    Dependency.objects.filter(pk__in=[each.pk for each in ended]).update(settled_at=now)
    nudge.engine()
    nudge.pages(nudge.QUEUE, nudge.workload_topic(workload.public_id))


def _release_tasks() -> int:
    """Let as many more tasks of each array into the queue as its limit allows beside those that have not ended."""
    holding = Workload.objects.filter(held_back=True).values("array")
    released = Count("tasks", filter=~Q(tasks__state=WorkloadState.ENDED) & Q(tasks__held_back=False))
    arrays = JobArray.objects.filter(pk__in=holding).annotate(out=released)
    with_room = arrays.filter(Q(most_at_once=None) | Q(out__lt=F("most_at_once"))).values_list("pk", flat=True)
    return sum(_release_tasks_of(pk) for pk in with_room)


@transaction.atomic
def _release_tasks_of(pk: int) -> int:
    array = locks.arrays([pk])[pk]
    out = array.tasks.filter(held_back=False).exclude(state=WorkloadState.ENDED).count()
    held = array.tasks.filter(held_back=True, state=WorkloadState.QUEUED).order_by("array_index", "pk")
    room = None if array.most_at_once is None else max(0, array.most_at_once - out)
    found = list(held.values_list("pk", flat=True)[:room])
    changed = Workload.objects.filter(pk__in=found, held_back=True).update(held_back=False)
    if changed:
        nudge.engine()
        nudge.pages(nudge.QUEUE)
    return changed
