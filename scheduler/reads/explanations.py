"""Answer why a workload waits, what would let it start sooner, and what an operator's action would change."""

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
    """Why does that team get more? One row per team of a pool."""
    return fairness.fairness_table(
        request_snapshot_cache.take_cached_snapshot([pool.pk], now), pool.pk, core_values.epoch_seconds(now)
    )


def sooner_alternatives(workload: Workload, now: datetime) -> list[alternatives.Alternative]:
    """What a waiting workload could ask for instead to start sooner; empty when nothing would help. Of priorities, those
    that its team may use. Its project and team are loaded."""
    allowed = allowed_alternatives(workload.kind, workload.project, now)
    taken = request_snapshot_cache.take_cached_snapshot([workload.pool_id], now)
    return alternatives.earlier_alternatives(
        taken, workload.pk, core_values.epoch_seconds(now), allowed, _last_refusal(workload)
    )


def _last_refusal(workload: Workload) -> plan.Refusal | None:
    """What the last cycle said to a waiting workload; None where none has looked at it yet."""
    if not workload.reason_code or workload.position is None:
        return None
    expected = workload.expected_start
    start = None if expected is None else core_values.epoch_seconds(expected)
    return plan.Refusal(workload.pk, workload.reason_code, (), workload.position, start)


def reservable_windows(
    workload: Workload, *, owner: Person, length: timedelta, now: datetime
) -> list[tuple[datetime, datetime]]:
    """Another time: the first windows in which ``owner`` could reserve what a waiting workload asks for, by the rule of
    ``services.check_window``. None for what waits for something else than GPUs, such as a budget that refuses new
    work, or inside a reservation. Its pool is loaded."""
    taken = request_snapshot_cache.take_cached_snapshot([workload.pool_id], now)
    queued = next((q for q in taken.queued if q.id == workload.pk), None)
    if queued is None or queued.reservation is not None or queued.gate:
        return []
    at, horizon = core_values.epoch_seconds(now), workload.pool.reservation_horizon_seconds
    budget = gate_effects.budget_effect(gate_effects.closed_budget_gates(now), queued.team, queued.project)
    whose = ReservationRequester(queued.team, owner.pk, borrows_again_from=budget.borrows_again_from)
    found = alternatives.reservable_windows(taken, queued, whose, at, int(length.total_seconds()), horizon)
    return [(datetime.fromtimestamp(w.start, UTC), datetime.fromtimestamp(w.end, UTC)) for w in found]


def allowed_alternatives(kind: str, project: Project, now: datetime) -> alternatives.AllowedChanges:
    """What work of a project could ask for to start sooner: only jobs have a priority, or may be preemptible, which is of use
    while the budget allows borrowing. The project's team is loaded."""
    if kind != WorkloadKind.JOB:
        return alternatives.AllowedChanges()
    budget = gate_effects.budget_effect(gate_effects.closed_budget_gates(now), project.team_id, project.pk)
    return alternatives.AllowedChanges(model.Priority(project.team.highest_priority), budget.may_borrow)


def turns_before(workload: Workload, now: datetime) -> list[tuple[QueueTurn, TurnCriterion]]:
    """Those whose turn comes before that of a waiting workload, in order, and what decides."""
    return comparison.turns_in_pool(
        request_snapshot_cache.take_cached_snapshot([workload.pool_id], now),
        workload.pool_id,
        core_values.epoch_seconds(now),
    ).before(workload.pk)


def compare_turns(mine: Workload, other: Workload, now: datetime) -> comparison.WorkloadComparison | None:
    """Why ``other`` of the same pool and not ``mine``, which waits. None when either is not there any more."""
    submitted = core_values.epoch_seconds(other.submitted_at)
    taken = request_snapshot_cache.take_cached_snapshot([mine.pool_id], now)
    return comparison.compare_workloads(taken, mine.pk, other.pk, core_values.epoch_seconds(now), submitted)


def drain_effect(host: Host, now: datetime) -> drain.DrainEffect:
    """Whom draining a host would move, and where to."""
    return drain.drain_effect(
        request_snapshot_cache.take_cached_snapshot([host.pool_id], now),
        host.pk,
        core_values.epoch_seconds(now),
    )


def reservations_broken_without(gpu: Gpu, now: datetime) -> tuple[int, ...]:
    """Reservations to come that can be kept now and could not be without a GPU as it is. Its host is loaded."""
    taken, pool = request_snapshot_cache.take_cached_snapshot([gpu.host.pool_id], now), gpu.host.pool_id
    mine = {unit.id for unit in taken.units if unit.gpu == gpu.pk}
    return drain.reservations_broken_without(taken, pool, mine, core_values.epoch_seconds(now))
