"""What would happen, without doing it: the same ``plan()`` over a moment with one workload more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser as Person

from scheduler import estimates, one_answer, selectors, snapshot
from scheduler.core import explain, model, never
from scheduler.core.reasons import Code
from scheduler.dependencies import After, awaited, links
from scheduler.models import Pool, Project, Reservation, Workload
from scheduler.prediction import predict_seconds
from scheduler.waiting_limits import too_many


def preview_workload(
    *, project: Project, pool: Pool, owner: Person, max_runtime_seconds: int, now: datetime, preemptible: bool = False,
    priority: int = model.Priority.NORMAL, reservation: Reservation | None = None, after: After = (), **columns: Any,
) -> dict[str, Any]:  # fmt: skip
    """What the next cycle would say to this workload if it were queued now.

    ``starts_now`` (bool), ``code`` and ``numbers`` (why or why not), ``expected_start`` (datetime or None), ``likely`` (from
    when and by when, or None), ``past_starts`` (the pool's record, None when it starts now), ``sooner``
    (``explain.Alternative``), ``never`` (``Never`` or None), ``borrowed_slots``, ``predicted_seconds`` (how
    long it would run), ``quota_effect`` (see ``selectors.quota_effect``). ``columns`` are those of ``queue_workload``; what
    the plan does not ask for is ignored.
    """
    numbers = too_many(pool, person=owner.pk, team=project.team_id, more=1)
    if numbers is not None:
        effect = selectors.quota_effect(team=project.team_id, pool=pool.pk, now=now)
        past = estimates.records([pool.pk], now)[pool.pk]
        return {**_not_taken(Code.TOO_MANY_WAITING, numbers), "quota_effect": effect, "past_starts": past}
    taken = one_answer.take([pool.pk], now)
    row = _row(
        pk=1 + max([q.id for q in taken.queued] + [r.id for r in taken.running], default=0),
        project=project, pool=pool, owner=owner, max_runtime_seconds=max_runtime_seconds, now=now, preemptible=preemptible,
        priority=priority, reservation=reservation, after=after, columns=columns,
    )  # fmt: skip
    row.predicted_seconds = predict_seconds(
        pool=pool, team=project.team, owner_id=owner.pk, total_units=row.units * row.hosts,
        max_runtime_seconds=max_runtime_seconds,
    )  # fmt: skip
    queued = snapshot.queued_of(row, now)
    answer = explain.preview(taken, queued, snapshot.seconds(now))
    effect = selectors.quota_effect(team=project.team_id, pool=pool.pk, now=now)
    said: dict[str, Any] = {"code": answer.code, "numbers": dict(answer.numbers), "quota_effect": effect}
    said |= {"likely": None, "past_starts": None, "sooner": [], "never": None}
    said["predicted_seconds"] = queued.predicted_seconds
    if isinstance(answer, model.Placement):
        return {**said, "starts_now": True, "expected_start": now, "borrowed_slots": answer.borrowed_slots}
    expected = _moment(answer.expected_start)
    said["past_starts"] = past = estimates.records([pool.pk], now)[pool.pk]
    said["likely"] = estimates.range_of(past, expected, now)
    allowed = selectors.allowed_otherwise(columns.get("kind", ""), project, now)
    said["sooner"] = explain.sooner_than(taken, queued, snapshot.seconds(now), allowed, answer)
    if expected is None:
        said["never"] = _never(row, now)
    return {**said, "starts_now": False, "expected_start": expected, "borrowed_slots": 0}


@dataclass(frozen=True)
class Never:
    """Why something would not start whatever ended; ``may_be_granted``: unless its team is granted more."""

    code: str
    numbers: dict[str, Any]
    may_be_granted: bool


def never_starts(
    *, project: Project, pool: Pool, owner: Person, max_runtime_seconds: int, now: datetime, preemptible: bool = False,
    priority: int = model.Priority.NORMAL, reservation: Reservation | None = None, **columns: Any,
) -> Never | None:  # fmt: skip
    """Why this workload would never start, if it were queued now; None where it can. ``columns``: see ``queue_workload``."""
    row = _row(
        pk=1, project=project, pool=pool, owner=owner, max_runtime_seconds=max_runtime_seconds, now=now, preemptible=preemptible,
        priority=priority, reservation=reservation, after=(), columns=columns,
    )  # fmt: skip
    row.predicted_seconds = max_runtime_seconds
    return _never(row, now)


def never_starts_of(workload: Workload, now: datetime) -> Never | None:
    """The same of one that waits."""
    return _never(workload, now)


def _never(row: Workload, now: datetime) -> Never | None:
    empty = snapshot.take_empty([row.pool_id], now)
    said = never.never_starts(empty, snapshot.queued_of(row, now), snapshot.seconds(now))
    return None if said is None else Never(said.code, dict(said.numbers), said.code in never.MAY_BE_GRANTED)


def _row(
    *, pk: int, project: Project, pool: Pool, owner: Person, max_runtime_seconds: int, now: datetime, preemptible: bool,
    priority: int, reservation: Reservation | None, after: After, columns: dict[str, Any],
) -> Workload:  # fmt: skip
    """A workload that is not written."""
    workloads, arrays = awaited(links(after))
    asked = {name: columns[name] for name in snapshot.ASK_COLUMNS if name in columns}
    return Workload(
        pk=pk, project=project, owner_id=owner.pk, pool=pool, reservation=reservation, submitted_at=now,
        max_runtime_seconds=max_runtime_seconds, priority=int(priority), preemptible=preemptible,
        waits_for=workloads, waits_for_arrays=arrays, **asked,
    )  # fmt: skip


def _not_taken(code: Code, numbers: model.Numbers) -> dict[str, Any]:
    """It would not even be queued."""
    return {
        "code": str(code), "numbers": dict(numbers), "likely": None, "sooner": [], "never": None, "predicted_seconds": 0,
        "starts_now": False, "expected_start": None, "borrowed_slots": 0,
    }  # fmt: skip


def _moment(at: int | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)
