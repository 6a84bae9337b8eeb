"""Reads that several pages, the API and telemetry share. Nothing here changes a row."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, OuterRef, Q, QuerySet

from scheduler import one_answer, snapshot
from scheduler.core import explain, model, timeline
from scheduler.core.ordering import Part, Turn
from scheduler.models import Allocation, BoundUnit, Host, Pool, Project, Unit, Workload, WorkloadKind
from scheduler.states import AdminState, LeaseState, RepairState


def is_free(now: datetime) -> Q:
    """Of units: could be given to somebody at this moment: well, in service, held by nobody and bound to no reservation."""
    held = Allocation.objects.filter(unit=OuterRef("pk"), period__upper_inf=True)
    bound = BoundUnit.objects.filter(unit=OuterRef("pk"), period__contains=now)
    in_service = Q(
        gpu__repair_state=RepairState.WELL,
        gpu__host__lease_state=LeaseState.ALIVE,
        gpu__host__admin_state=AdminState.IN_SERVICE,
        gpu__host__repair_state=RepairState.WELL,
    )
    return ~Exists(held) & ~Exists(bound) & in_service


def free_units(pool: Pool, now: datetime) -> QuerySet[Unit]:
    """The free units of a pool."""
    units = Unit.objects.filter(gpu__host__pool=pool, retired_at__isnull=True, gpu__retired_at__isnull=True)
    return units.filter(is_free(now))


@dataclass(frozen=True, slots=True)
class Occupancy:
    """One model of one pool, in slots (840 is one GPU). ``closed`` are those nobody may be given: sick, cordoned, silent."""

    model: str
    total: int
    held: int
    bound_unused: int
    closed: int

    @property
    def free(self) -> int:
        return self.total - self.held - self.bound_unused - self.closed


def occupancy(pool: Pool, now: datetime) -> list[Occupancy]:
    """What a pool's GPUs do at this moment, by model. Held comes before bound, bound before closed: each slot counts once."""
    taken = one_answer.take([pool.pk], now)
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
    return [Occupancy(name, *sums[name]) for name in sorted(sums)]


def held_by_team(taken: model.Snapshot, pool: int) -> dict[tuple[int, str], int]:
    """Slots held per team and GPU model in one pool; a reservation's bound units count as its team's, used or not."""
    units = {unit.id: unit for unit in taken.units}
    sums: dict[tuple[int, str], int] = defaultdict(int)
    inside = {reservation.id for reservation in taken.reservations if reservation.units}
    for running in taken.running:
        if running.pool == pool and running.reservation not in inside:
            for unit in running.units:
                sums[running.team, units[unit].model] += units[unit].slots
    for reservation in taken.reservations:
        for unit in reservation.units if reservation.pool == pool else ():
            if unit in units:
                sums[reservation.team, units[unit].model] += units[unit].slots
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


def quota_effect(taken: model.Snapshot, *, team: int, pool: int) -> list[QuotaUse]:
    """What a team is guaranteed and holds in a pool, by model: what a new workload comes on top of."""
    held = held_by_team(taken, pool)
    mine = [quota for quota in taken.quotas if quota.team == team and quota.pool == pool]
    return [
        QuotaUse(q.model, q.guaranteed, held.get((team, q.model), 0), q.borrow_limit)
        for q in sorted(mine, key=lambda q: q.model)
    ]


def fairness(pool: Pool, now: datetime) -> list[explain.FairnessRow]:
    """Why does that team get more? One row per team of a pool."""
    return explain.fairness_table(one_answer.take([pool.pk], now), pool.pk, snapshot.seconds(now))


def sooner(workload: Workload, now: datetime) -> list[explain.Alternative]:
    """What a waiting workload could ask for instead to start sooner; empty when nothing would help. Of priorities, those
    that its team may use. Its project and team are loaded."""
    allowed = allowed_otherwise(workload.kind, workload.project, now)
    return explain.sooner(one_answer.take([workload.pool_id], now), workload.pk, snapshot.seconds(now), allowed)


def allowed_otherwise(kind: str, project: Project, now: datetime) -> explain.Allowed:
    """What work of a project could ask for to start sooner: only jobs have a priority, or may be preemptible, which is of use
    while the budget allows borrowing. The project's team is loaded."""
    if kind != WorkloadKind.JOB:
        return explain.Allowed()
    budget = snapshot.budget_of(snapshot.closed_gates(now), project.team_id, project.pk)
    return explain.Allowed(model.Priority(project.team.highest_priority), budget.may_borrow)


def before(workload: Workload, now: datetime) -> list[tuple[Turn, Part]]:
    """Those whose turn comes before that of a waiting workload, in order, and what decides."""
    return explain.turns_of(one_answer.take([workload.pool_id], now), workload.pool_id, snapshot.seconds(now)).before(
        workload.pk
    )


def compare(mine: Workload, other: Workload, now: datetime) -> explain.Comparison | None:
    """Why ``other`` of the same pool and not ``mine``, which waits. None when either is not there any more."""
    submitted = snapshot.seconds(other.submitted_at)
    taken = one_answer.take([mine.pool_id], now)
    return explain.compare(taken, mine.pk, other.pk, snapshot.seconds(now), submitted)


def drain_effect(host: Host, now: datetime) -> explain.DrainEffect:
    """Whom draining a host would move, and where to."""
    return explain.drain_effect(one_answer.take([host.pool_id], now), host.pk, snapshot.seconds(now))


def promisable_units(
    pool: Pool, *, model: str, profile: str, start: datetime, end: datetime, step_seconds: int, now: datetime
) -> list[tuple[int, int]]:
    """For the calendar: (seconds since the epoch, units that could still be promised for all of that step)."""
    taken = one_answer.take([pool.pk], now)
    window = (snapshot.seconds(start), snapshot.seconds(end), step_seconds, snapshot.seconds(now))
    return timeline.free_units(taken, pool.pk, model, profile, *window)
