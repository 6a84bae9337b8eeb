"""What would happen, without doing it: the same ``plan()`` over a moment with one workload more."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser as Person

from scheduler import selectors, snapshot
from scheduler.core import model
from scheduler.core.planner import plan
from scheduler.models import Pool, Project, Reservation, Workload
from scheduler.prediction import predict_seconds


def preview_workload(
    *, project: Project, pool: Pool, owner: Person, max_runtime_seconds: int, now: datetime, preemptible: bool = False,
    priority: int = model.Priority.NORMAL, reservation: Reservation | None = None, **columns: Any,
) -> dict[str, Any]:  # fmt: skip
    """What the next cycle would say to this workload if it were queued now.

    ``starts_now`` (bool), ``code`` and ``numbers`` (why or why not), ``expected_start`` (datetime or None), ``evicted``
    (ids of workloads that would be told to go for it), ``borrowed_slots``, ``quota_effect`` (see
    ``selectors.quota_effect``). ``columns`` are those of ``queue_workload``; what the plan does not ask for is ignored.
    """
    taken = snapshot.take([pool.pk], now)
    asked = snapshot.ask_of(Workload(**{name: columns[name] for name in snapshot.ASK_COLUMNS if name in columns}))
    queued = model.Queued(
        id=1 + max((q.id for q in (*taken.queued, *taken.running)), default=0),
        team=project.team_id,
        project=project.pk,
        user=owner.pk,
        pool=pool.pk,
        ask=asked,
        submitted=snapshot.seconds(now),
        max_runtime_seconds=max_runtime_seconds,
        predicted_seconds=predict_seconds(
            pool=pool, team=project.team, owner_id=owner.pk, total_units=asked.total_units,
            max_runtime_seconds=max_runtime_seconds,
        ),
        priority=model.Priority(int(priority)),
        preemptible=preemptible,
        may_borrow=preemptible,
        reservation=reservation.pk if reservation else None,
    )  # fmt: skip
    answer = plan(snapshot.with_queued(taken, queued), snapshot.seconds(now))
    effect = selectors.quota_effect(taken, team=project.team_id, pool=pool.pk)
    evicted = [e.workload for e in answer.evictions if e.for_workload == queued.id]
    for placement in answer.placements:
        if placement.workload == queued.id:
            return {
                "starts_now": True, "code": placement.code, "numbers": dict(placement.numbers), "expected_start": now,
                "evicted": evicted, "borrowed_slots": placement.borrowed_slots, "quota_effect": effect,
            }  # fmt: skip
    refusal = next(r for r in answer.refusals if r.workload == queued.id)
    expected = None if refusal.expected_start is None else datetime.fromtimestamp(refusal.expected_start, UTC)
    return {
        "starts_now": False, "code": refusal.code, "numbers": dict(refusal.numbers), "expected_start": expected,
        "evicted": evicted, "borrowed_slots": 0, "quota_effect": effect,
    }  # fmt: skip
