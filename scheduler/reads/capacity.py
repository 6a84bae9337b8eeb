"""Reads that several pages, the API and telemetry share. Nothing here changes a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.contrib.auth.base_user import AbstractBaseUser as Person
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Sum

from scheduler.core.model import plan
from scheduler.core.model import snapshot as model
from scheduler.core.promises import reservation_windows
from scheduler.core.promises.promise_timeline import ReservationRequester
from scheduler.core.queue.turn import QueueTurn, TurnCriterion
from scheduler.core.what_if import alternatives, comparison, drain, fairness
from scheduler.cycle import request_snapshot_cache, schedulable_hosts, snapshot
from scheduler.models import (
    Allocation,
    BoundUnit,
    Gpu,
    Host,
    Pool,
    Project,
    Quota,
    Unit,
    Workload,
    WorkloadKind,
)
from scheduler.state.states import RepairState, ReservationState

SLOT_COUNT = F("slots__endswith") - F("slots__startswith")


def free_unit_filter(now: datetime) -> Q:
    """Of units: could be given to somebody at this moment: well, on a host that takes new work, held by nobody and bound to no
    reservation."""
    held = Allocation.objects.filter(unit=OuterRef("pk"), period__upper_inf=True)
    bound = BoundUnit.objects.filter(unit=OuterRef("pk"), period__contains=now)
    return (
        ~Exists(held)
        & ~Exists(bound)
        & Q(gpu__repair_state=RepairState.WELL)
        & schedulable_hosts.schedulable_filter("gpu__host")
    )


def free_units(pool: Pool, now: datetime) -> QuerySet[Unit]:
    """The free units of a pool."""
    units = Unit.objects.filter(gpu__host__pool=pool, retired_at__isnull=True, gpu__retired_at__isnull=True)
    return units.filter(free_unit_filter(now))


@dataclass(frozen=True, slots=True)
class ModelOccupancy:
    """One model of one pool, in slots (840 is one GPU). ``closed`` are those nobody may be given: sick, cordoned, silent."""

    model: str
    total: int
    held: int
    bound_unused: int
    closed: int

    @property
    def free(self) -> int:
        return self.total - self.held - self.bound_unused - self.closed


def pool_occupancy(pool: Pool, now: datetime) -> list[ModelOccupancy]:
    """What a pool's GPUs do at this moment, by model. Held comes before bound, bound before closed: each slot counts once."""
    taken = request_snapshot_cache.take_cached_snapshot([pool.pk], now)
    held = {unit for running in taken.running for unit in running.units}
    bound = {unit for reservation in taken.reservations for unit in reservation.units}
    open_hosts = {host.id for host in taken.hosts if host.accepts}
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for unit in taken.units:
        row = sums[unit.model]
        row[0] += unit.slots
        if unit.id in held:
            row[1] += unit.slots
        elif unit.id in bound:
            row[2] += unit.slots
        elif not unit.well or unit.host not in open_hosts:
            row[3] += unit.slots
    return [ModelOccupancy(name, *sums[name]) for name in sorted(sums)]


def held_by_team(teams: Collection[int], now: datetime) -> dict[tuple[int, int, str], int]:
    """Slots that teams hold, by (team, pool, GPU model): what runs outside active reservations, and what is bound to
    reservations, used or not. Two queries."""
    sums: dict[tuple[int, int, str], int] = defaultdict(int)
    outside = Allocation.objects.filter(period__upper_inf=True, project__team__in=teams)
    outside = outside.exclude(reservation__state=ReservationState.ACTIVE)
    bound = BoundUnit.objects.filter(reservation__project__team__in=teams, period__contains=now)
    for rows, team in ((outside, "project__team_id"), (bound, "reservation__project__team_id")):
        keys = (team, "unit__gpu__host__pool_id", "unit__gpu__model")
        for owner, pool, model_name, slots in rows.values_list(*keys).annotate(slots_held=Sum(SLOT_COUNT)):
            sums[owner, pool, model_name] += slots
    return dict(sums)


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """A team's claim on one model and what it holds of it, in slots. ``borrow_limit`` None is no limit."""

    model: str
    guaranteed: int
    held: int
    borrow_limit: int | None

    @property
    def borrowed(self) -> int:
        return max(0, self.held - self.guaranteed)


def quota_use(*, team: int, pool: int, now: datetime) -> list[QuotaUse]:
    """What a team is guaranteed and holds in a pool, by model: what a new workload comes on top of."""
    held = held_by_team([team], now)
    mine = Quota.objects.filter(team=team, pool=pool).order_by("model")
    return [
        QuotaUse(q.model, q.guaranteed_slots, held.get((team, pool, q.model), 0), q.borrow_limit_slots)
        for q in mine
    ]


def fairness_rows(pool: Pool, now: datetime) -> list[fairness.FairnessRow]:
    """Why does that team get more? One row per team of a pool."""
    return fairness.fairness_table(
        request_snapshot_cache.take_cached_snapshot([pool.pk], now), pool.pk, snapshot.epoch_seconds(now)
    )


def sooner_alternatives(workload: Workload, now: datetime) -> list[alternatives.Alternative]:
    """What a waiting workload could ask for instead to start sooner; empty when nothing would help. Of priorities, those
    that its team may use. Its project and team are loaded."""
    allowed = allowed_alternatives(workload.kind, workload.project, now)
    taken = request_snapshot_cache.take_cached_snapshot([workload.pool_id], now)
    return alternatives.earlier_alternatives(
        taken, workload.pk, snapshot.epoch_seconds(now), allowed, _last_refusal(workload)
    )


def _last_refusal(workload: Workload) -> plan.Refusal | None:
    """What the last cycle said to a waiting workload; None where none has looked at it yet."""
    if not workload.reason_code or workload.position is None:
        return None
    expected = workload.expected_start
    start = None if expected is None else snapshot.epoch_seconds(expected)
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
    at, horizon = snapshot.epoch_seconds(now), workload.pool.reservation_horizon_seconds
    budget = snapshot.budget_effect(snapshot.closed_budget_gates(now), queued.team, queued.project)
    whose = ReservationRequester(queued.team, owner.pk, borrows_again_from=budget.borrows_again_from)
    found = alternatives.reservable_windows(taken, queued, whose, at, int(length.total_seconds()), horizon)
    return [(datetime.fromtimestamp(w.start, UTC), datetime.fromtimestamp(w.end, UTC)) for w in found]


def allowed_alternatives(kind: str, project: Project, now: datetime) -> alternatives.AllowedChanges:
    """What work of a project could ask for to start sooner: only jobs have a priority, or may be preemptible, which is of use
    while the budget allows borrowing. The project's team is loaded."""
    if kind != WorkloadKind.JOB:
        return alternatives.AllowedChanges()
    budget = snapshot.budget_effect(snapshot.closed_budget_gates(now), project.team_id, project.pk)
    return alternatives.AllowedChanges(model.Priority(project.team.highest_priority), budget.may_borrow)


def turns_before(workload: Workload, now: datetime) -> list[tuple[QueueTurn, TurnCriterion]]:
    """Those whose turn comes before that of a waiting workload, in order, and what decides."""
    return comparison.turns_in_pool(
        request_snapshot_cache.take_cached_snapshot([workload.pool_id], now),
        workload.pool_id,
        snapshot.epoch_seconds(now),
    ).before(workload.pk)


def compare_turns(mine: Workload, other: Workload, now: datetime) -> comparison.WorkloadComparison | None:
    """Why ``other`` of the same pool and not ``mine``, which waits. None when either is not there any more."""
    submitted = snapshot.epoch_seconds(other.submitted_at)
    taken = request_snapshot_cache.take_cached_snapshot([mine.pool_id], now)
    return comparison.compare_workloads(taken, mine.pk, other.pk, snapshot.epoch_seconds(now), submitted)


def drain_effect(host: Host, now: datetime) -> drain.DrainEffect:
    """Whom draining a host would move, and where to."""
    return drain.drain_effect(
        request_snapshot_cache.take_cached_snapshot([host.pool_id], now), host.pk, snapshot.epoch_seconds(now)
    )


def reservations_broken_without(gpu: Gpu, now: datetime) -> tuple[int, ...]:
    """Reservations to come that can be kept now and could not be without a GPU as it is. Its host is loaded."""
    taken, pool = request_snapshot_cache.take_cached_snapshot([gpu.host.pool_id], now), gpu.host.pool_id
    mine = {unit.id for unit in taken.units if unit.gpu == gpu.pk}
    return drain.reservations_broken_without(taken, pool, mine, snapshot.epoch_seconds(now))


def promisable_units(
    pool: Pool, *, model: str, profile: str, start: datetime, end: datetime, step_seconds: int, now: datetime
) -> list[tuple[int, int]]:
    """For the calendar: (seconds since the epoch, units that could still be promised for all of that step)."""
    taken = request_snapshot_cache.take_cached_snapshot([pool.pk], now)
    window = (
        snapshot.epoch_seconds(start),
        snapshot.epoch_seconds(end),
        step_seconds,
        snapshot.epoch_seconds(now),
    )
    return reservation_windows.free_units_by_time(taken, pool.pk, model, profile, *window)
