"""Preview the planner's decision about a workload, without queueing the workload."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser as Person

from scheduler.core import reasons
from scheduler.core.model import plan
from scheduler.core.reasons import ReasonCode
from scheduler.core.what_if import alternatives, impossible, preview
from scheduler.cycle import core_values, request_snapshot_cache, snapshot
from scheduler.models import Workload
from scheduler.queue import start_estimates
from scheduler.queue.dependencies import awaited_ids, dependency_states
from scheduler.queue.queue_limits import queue_limit_exceeded
from scheduler.queue.runtime_prediction import predict_runtime_seconds
from scheduler.reads import capacity, explanations
from scheduler.requests import WorkloadRequest


def preview_workload(request: WorkloadRequest, *, owner: Person, now: datetime) -> dict[str, Any]:
    """Return the decision that the next cycle would make if this workload were queued now.

    The keys of the result are:

    - ``starts_now``: True if the workload would start at once.
    - ``code`` and ``numbers``: the reason.
    - ``expected_start``: a datetime, or None if no start is expected.
    - ``likely``: the earliest and the latest likely start, or None.
    - ``past_starts``: the accuracy of the pool's past estimates, or None if the workload starts now.
    - ``sooner``: a list of ``alternatives.Alternative``, the changes that would let it start sooner.
    - ``never``: an ``ImpossibleStart`` if the workload can never start, otherwise None.
    - ``borrowed_slots``: the slots that it would borrow.
    - ``predicted_seconds``: the predicted runtime.
    - ``quota_effect``: the result of ``capacity.quota_use``.
    """
    pool, project = request.pool, request.project
    numbers = queue_limit_exceeded(pool, person=owner.pk, team=project.team_id, more=1)
    if numbers is not None:
        effect = capacity.quota_use(team=project.team_id, pool=pool.pk, now=now)
        past = start_estimates.past_starts_by_pool([pool.pk], now)[pool.pk]
        return {
            **_rejected_preview(ReasonCode.TOO_MANY_WAITING, numbers),
            "quota_effect": effect,
            "past_starts": past,
        }
    taken = request_snapshot_cache.take_cached_snapshot([pool.pk], now)
    row = _unsaved_row(
        request, 1 + max([q.id for q in taken.queued] + [r.id for r in taken.running], default=0), owner, now
    )
    row.waits_for, row.waits_for_arrays = awaited_ids(dependency_states(request.after))
    row.predicted_seconds = predict_runtime_seconds(
        pool=pool,
        team=project.team,
        owner_id=owner.pk,
        total_units=row.units * row.hosts,
        max_runtime_seconds=row.max_runtime_seconds,
    )
    queued = snapshot.queued_from_row(row, now)
    answer = preview.preview(taken, queued, core_values.epoch_seconds(now))
    effect = capacity.quota_use(team=project.team_id, pool=pool.pk, now=now)
    result: dict[str, Any] = {"code": answer.code, "numbers": dict(answer.numbers), "quota_effect": effect}
    result |= {"likely": None, "past_starts": None, "sooner": [], "never": None}
    result["predicted_seconds"] = queued.predicted_seconds
    if isinstance(answer, plan.Placement):
        return {**result, "starts_now": True, "expected_start": now, "borrowed_slots": answer.borrowed_slots}
    expected = _datetime(answer.expected_start)
    result["past_starts"] = past = start_estimates.past_starts_by_pool([pool.pk], now)[pool.pk]
    result["likely"] = start_estimates.likely_range(past, expected, now)
    allowed = explanations.allowed_alternatives(request.kind, project, now)
    result["sooner"] = alternatives.earlier_alternatives_for(
        taken, queued, core_values.epoch_seconds(now), allowed, answer
    )
    if expected is None:
        result["never"] = _impossible_start(row, now)
    return {**result, "starts_now": False, "expected_start": expected, "borrowed_slots": 0}


@dataclass(frozen=True)
class ImpossibleStart:
    """The reason why a workload can never start.

    ``may_be_granted`` is True if an operator could remove the obstacle, for example with a larger quota.
    """

    code: str
    numbers: dict[str, Any]
    may_be_granted: bool


def impossible_start(request: WorkloadRequest, *, owner: Person, now: datetime) -> ImpossibleStart | None:
    """Return why this workload could never start, even if all other work ended.

    Return None if the workload can start.
    """
    row = _unsaved_row(request, 1, owner, now)
    row.predicted_seconds = row.max_runtime_seconds
    return _impossible_start(row, now)


def impossible_start_of(workload: Workload, now: datetime) -> ImpossibleStart | None:
    """Return the reason why a waiting workload can never start, or None if it can start."""
    return _impossible_start(workload, now)


def _impossible_start(row: Workload, now: datetime) -> ImpossibleStart | None:
    empty = snapshot.take_empty_snapshot([row.pool_id], now)
    reason = impossible.impossible_reason(
        empty, snapshot.queued_from_row(row, now), core_values.epoch_seconds(now)
    )
    return (
        None
        if reason is None
        else ImpossibleStart(reason.code, dict(reason.numbers), reason.code in impossible.GRANTABLE_CODES)
    )


def _unsaved_row(request: WorkloadRequest, pk: int, owner: Person, now: datetime) -> Workload:
    """Return an unsaved workload row for the request, with the id ``pk``."""
    return Workload(**request.columns(), pk=pk, owner_id=owner.pk, submitted_at=now)


def _rejected_preview(code: ReasonCode, numbers: reasons.ReasonNumbers) -> dict[str, Any]:
    """Return the preview of a workload whose submission would be rejected."""
    return {
        "code": str(code),
        "numbers": dict(numbers),
        "likely": None,
        "sooner": [],
        "never": None,
        "predicted_seconds": 0,
        "starts_now": False,
        "expected_start": None,
        "borrowed_slots": 0,
    }


def _datetime(at: int | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)
