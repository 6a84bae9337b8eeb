"""What keeps waiting work from the queue until other work has ended: its dependencies, and its array's limit.

Level-triggered, over rows: called before each cycle and by the sweep, twice, late or by two processes at once, it does the
same work once. The snapshot reads only what is written here: ``waits_for`` and ``held_back`` of the workload itself.
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

MAX_SETTLED_PER_CALL = 500  # settled in one call; the next call goes on


def release_dependents(now: datetime) -> int:
    """Bring what waits for other work up to date; how many workloads were changed."""
    changed = 0
    while some := _settle_dependencies(now):  # what ends here may be waited for itself
        changed += some
        if changed >= MAX_SETTLED_PER_CALL:
            break
    return changed + _release_tasks()


def _settle_dependencies(now: datetime) -> int:
    unsettled = Dependency.objects.filter(settled_at=None)
    arrays = set(unsettled.exclude(on_array=None).order_by().values_list("on_array", flat=True).distinct())
    tasks = array_progress(arrays)
    due = Q(on__state=WorkloadState.ENDED)
    for condition in Dependency.Condition:
        known = [array for array, come in tasks.items() if is_met_by_array(condition, come) is not None]
        due |= Q(on_array__in=known, condition=condition) if known else Q()
    found = unsettled.filter(due).order_by("workload_id").values_list("workload_id", flat=True)
    waiting = list(dict.fromkeys(found[:MAX_SETTLED_PER_CALL]))
    for pk in waiting:
        with transaction.atomic():
            _settle_one(locks.workloads([pk])[pk], now)
    return len(waiting)


def _settle_one(workload: Workload, now: datetime) -> None:
    """Of one locked workload: what has ended is waited for no more; when it ended otherwise than it had to, so does this one."""
    unsettled = list(
        Dependency.objects.filter(workload=workload, settled_at=None)
        .select_related("on", "on_array")
        .order_by("pk")
    )
    standing = {
        each.pk: link
        for each, link in zip(unsettled, dependency_states(_dependency_specs(unsettled)), strict=True)
    }
    settled = [each for each in unsettled if standing[each.pk].met is not None]
    unmet = next((each for each in settled if not standing[each.pk].met), None)
    if unmet is not None and workload.state == WorkloadState.QUEUED:
        end_queued_workload(
            workload, code=ReasonCode.DEPENDENCY_NEVER_MET, now=now, numbers=_never_met_numbers(unmet)
        )
    gone, gone_arrays = {each.on_id for each in settled}, {each.on_array_id for each in settled}
    Workload.objects.filter(pk=workload.pk).update(
        waits_for=[pk for pk in workload.waits_for if pk not in gone],
        waits_for_arrays=[pk for pk in workload.waits_for_arrays if pk not in gone_arrays],
    )
    Dependency.objects.filter(pk__in=[each.pk for each in settled]).update(settled_at=now)
    nudge.engine()
    nudge.pages(nudge.QUEUE, nudge.workload_topic(workload.public_id))


def _dependency_specs(rows: Iterable[Dependency]) -> list[tuple[str, Workload | JobArray]]:
    """As they were asked for."""
    found = []
    for each in rows:
        on = each.on or each.on_array
        assert on is not None, "a constraint sees to it"
        found.append((each.condition, on))
    return found


def _never_met_numbers(unmet: Dependency) -> dict[str, Any]:
    """What it waited for and how that ended; of an array's tasks the first that did not finish, where one did not."""
    if unmet.on is not None:
        return {"workload": unmet.on_id, "condition": unmet.condition, "outcome": unmet.on.outcome}
    tasks = Workload.objects.filter(array=unmet.on_array_id, state=WorkloadState.ENDED).order_by(
        "array_index", "pk"
    )
    otherwise = tasks.exclude(outcome=str(ReasonCode.FINISHED)).values_list("outcome", flat=True).first()
    return {
        "array": unmet.on_array_id,
        "condition": unmet.condition,
        "outcome": otherwise or str(ReasonCode.FINISHED),
    }


def _release_tasks() -> int:
    """Let as many more tasks of each array into the queue as its limit allows beside those that have not ended."""
    holding = Workload.objects.filter(held_back=True).values("array")
    released = Count("tasks", filter=~Q(tasks__state=WorkloadState.ENDED) & Q(tasks__held_back=False))
    arrays = JobArray.objects.filter(pk__in=holding).annotate(out=released)
    with_room = arrays.filter(Q(most_at_once=None) | Q(out__lt=F("most_at_once"))).values_list(
        "pk", flat=True
    )
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
