"""Explain why a workload waits, how it could start sooner, and what an operator's action would cause."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.contrib.auth.base_user import AbstractBaseUser as Person

from scheduler.core.model import plan
from scheduler.core.model import snapshot as model
from scheduler.core.promises.promise_timeline import ReservationRequester
from scheduler.core.queue.turn import QueueTurn, TurnCriterion
from scheduler.core.what_if import alternatives, comparison, drain, fairness
from scheduler.cycle import core_values, gate_effects, request_snapshot_cache
from scheduler.models import Gpu, Host, Pool, Project, Workload, WorkloadKind


def fairness_rows(pool: Pool, now: datetime) -> list[fairness.FairnessRow]:
    """Return one row per team of a pool. The rows explain why one team gets more than another team."""
    return fairness.fairness_table(
        request_snapshot_cache.take_cached_snapshot([pool.pk], now), pool.pk, core_values.epoch_seconds(now)
    )


def sooner_alternatives(workload: Workload, now: datetime) -> list[alternatives.Alternative]:
    """Return changes of a waiting workload's request that would let the workload start sooner.

    The list is empty if no change would help. Only priorities that the workload's team may use are
    considered. Load ``workload`` with its project and team.
    """
    allowed = allowed_alternatives(workload.kind, workload.project, now)
    taken = request_snapshot_cache.take_cached_snapshot([workload.pool_id], now)
    return alternatives.earlier_alternatives(
        taken, workload.pk, core_values.epoch_seconds(now), allowed, _last_refusal(workload)
    )


def _last_refusal(workload: Workload) -> plan.Refusal | None:
    """Return the refusal that the last cycle wrote to a waiting workload's row.

    Return None if no cycle has refused the workload yet.
    """
    if not workload.reason_code or workload.position is None:
        return None
    expected = workload.expected_start
    start = None if expected is None else core_values.epoch_seconds(expected)
    return plan.Refusal(workload.pk, workload.reason_code, (), workload.position, start)


def reservable_windows(
    workload: Workload, *, owner: Person, length: timedelta, now: datetime
) -> list[tuple[datetime, datetime]]:
    """Return the first windows in which ``owner`` could reserve the hardware of a waiting workload.

    The windows meet the rule of ``services.check_window``. The result is empty for work inside a reservation,
    and for work that waits for something other than GPUs, such as a closed budget. Load ``workload`` with its
    pool.
    """
    taken = request_snapshot_cache.take_cached_snapshot([workload.pool_id], now)
    queued = next((q for q in taken.queued if q.id == workload.pk), None)
    if queued is None or queued.reservation is not None or queued.gate:
        return []
    at, horizon = core_values.epoch_seconds(now), workload.pool.reservation_horizon_seconds
    budget = gate_effects.budget_effect(gate_effects.closed_budget_gates(now), queued.team, queued.project)
    requester = ReservationRequester(queued.team, owner.pk, borrows_again_from=budget.borrows_again_from)
    found = alternatives.reservable_windows(
        taken, queued, requester, at, int(length.total_seconds()), horizon
    )
    return [(datetime.fromtimestamp(w.start, UTC), datetime.fromtimestamp(w.end, UTC)) for w in found]


def allowed_alternatives(kind: str, project: Project, now: datetime) -> alternatives.AllowedChanges:
    """Return the changes that may be suggested for a project's workload. Load ``project`` with its team.

    Only jobs have a priority or can be preemptible. ``preemptible`` is suggested only while the budget allows
    borrowing, because otherwise it would not let a job start sooner.
    """
    if kind != WorkloadKind.JOB:
        return alternatives.AllowedChanges()
    budget = gate_effects.budget_effect(gate_effects.closed_budget_gates(now), project.team_id, project.pk)
    return alternatives.AllowedChanges(model.Priority(project.team.highest_priority), budget.may_borrow)


def turns_before(workload: Workload, now: datetime) -> list[tuple[QueueTurn, TurnCriterion]]:
    """Return (turn, criterion) of each queued workload that the planner decides about before ``workload``.

    The turns are in queue order. The criterion puts the turn before the turn of ``workload``.
    """
    return comparison.turns_in_pool(
        request_snapshot_cache.take_cached_snapshot([workload.pool_id], now),
        workload.pool_id,
        core_values.epoch_seconds(now),
    ).before(workload.pk)


def compare_turns(mine: Workload, other: Workload, now: datetime) -> comparison.WorkloadComparison | None:
    """Return the reason why ``other`` starts before ``mine``. ``mine`` waits in the same pool.

    Return None if ``mine`` no longer waits, or if ``other`` neither waits nor runs.
    """
    submitted = core_values.epoch_seconds(other.submitted_at)
    taken = request_snapshot_cache.take_cached_snapshot([mine.pool_id], now)
    return comparison.compare_workloads(taken, mine.pk, other.pk, core_values.epoch_seconds(now), submitted)


def drain_effect(host: Host, now: datetime) -> drain.DrainEffect:
    """Return the workloads and reservations that a drain of a host would affect."""
    return drain.drain_effect(
        request_snapshot_cache.take_cached_snapshot([host.pool_id], now),
        host.pk,
        core_values.epoch_seconds(now),
    )


def maintenance_effect(host: Host, start: datetime, end: datetime, now: datetime) -> drain.ReservationEffect:
    """Return the reservations that a maintenance window of ``host`` would move or break.

    The window may already exist or may only be planned.
    """
    return drain.maintenance_effect(
        request_snapshot_cache.take_cached_snapshot([host.pool_id], now),
        host.pk,
        *(core_values.epoch_seconds(at) for at in (start, end, now)),
    )


def reservations_broken_without(gpu: Gpu, now: datetime) -> tuple[int, ...]:
    """Return the ids of reservations that can be kept now, but not without ``gpu``.

    Load ``gpu`` with its host.
    """
    taken, pool = request_snapshot_cache.take_cached_snapshot([gpu.host.pool_id], now), gpu.host.pool_id
    unit_ids = {unit.id for unit in taken.units if unit.gpu == gpu.pk}
    return drain.reservations_broken_without(taken, pool, unit_ids, core_values.epoch_seconds(now))
