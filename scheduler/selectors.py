"""Reads that several pages, the API and telemetry share. Nothing here changes a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.contrib.auth.base_user import AbstractBaseUser as Person
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Sum

from scheduler import one_answer, open_hosts, snapshot
from scheduler.core import explain, model, windows
from scheduler.core.ordering import Part, Turn
from scheduler.core.timeline import Claimant
from scheduler.models import Allocation, BoundUnit, Gpu, Host, Pool, Project, Quota, Unit, Workload, WorkloadKind
from scheduler.states import RepairState, ReservationState

SLOTS = F("slots__endswith") - F("slots__startswith")


def is_free(now: datetime) -> Q:
    """Of units: could be given to somebody at this moment: well, on a host that takes new work, held by nobody and bound to no
    reservation."""
    held = Allocation.objects.filter(unit=OuterRef("pk"), period__upper_inf=True)
    bound = BoundUnit.objects.filter(unit=OuterRef("pk"), period__contains=now)
    return ~Exists(held) & ~Exists(bound) & Q(gpu__repair_state=RepairState.WELL) & open_hosts.open_at("gpu__host")


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


def held_by_team(teams: Collection[int], now: datetime) -> dict[tuple[int, int, str], int]:
    """Slots that teams hold, by (team, pool, GPU model): what runs outside active reservations, and what is bound to
    reservations, used or not. Two queries."""
    sums: dict[tuple[int, int, str], int] = defaultdict(int)
    outside = Allocation.objects.filter(period__upper_inf=True, project__team__in=teams)
    outside = outside.exclude(reservation__state=ReservationState.ACTIVE)
    bound = BoundUnit.objects.filter(reservation__project__team__in=teams, period__contains=now)
    for rows, team in ((outside, "project__team_id"), (bound, "reservation__project__team_id")):
        keys = (team, "unit__gpu__host__pool_id", "unit__gpu__model")
        for owner, pool, model_name, slots in rows.values_list(*keys).annotate(slots_held=Sum(SLOTS)):
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


def quota_effect(*, team: int, pool: int, now: datetime) -> list[QuotaUse]:
    """What a team is guaranteed and holds in a pool, by model: what a new workload comes on top of."""
    held = held_by_team([team], now)
    mine = Quota.objects.filter(team=team, pool=pool).order_by("model")
    return [
        QuotaUse(q.model, q.guaranteed_slots, held.get((team, pool, q.model), 0), q.borrow_limit_slots) for q in mine
    ]


def fairness(pool: Pool, now: datetime) -> list[explain.FairnessRow]:
    """Why does that team get more? One row per team of a pool."""
    return explain.fairness_table(one_answer.take([pool.pk], now), pool.pk, snapshot.seconds(now))


def sooner(workload: Workload, now: datetime) -> list[explain.Alternative]:
    """What a waiting workload could ask for instead to start sooner; empty when nothing would help. Of priorities, those
    that its team may use. Its project and team are loaded."""
    allowed = allowed_otherwise(workload.kind, workload.project, now)
    taken = one_answer.take([workload.pool_id], now)
    return explain.sooner(taken, workload.pk, snapshot.seconds(now), allowed, _last_said(workload))


def _last_said(workload: Workload) -> model.Refusal | None:
    """What the last cycle said to a waiting workload; None where none has looked at it yet."""
    if not workload.reason_code or workload.position is None:
        return None
    expected = workload.expected_start
    start = None if expected is None else snapshot.seconds(expected)
    return model.Refusal(workload.pk, workload.reason_code, (), workload.position, start)


def reservable(workload: Workload, *, owner: Person, length: timedelta, now: datetime) -> list[tuple[datetime, datetime]]:
    """Another time: the first windows in which ``owner`` could reserve what a waiting workload asks for, by the rule of
    ``services.check_window``. None for what waits for something else than GPUs, such as a budget that refuses new
    work, or inside a reservation. Its pool is loaded."""
    taken = one_answer.take([workload.pool_id], now)
    queued = next((q for q in taken.queued if q.id == workload.pk), None)
    if queued is None or queued.reservation is not None or queued.gate:
        return []
    at, horizon = snapshot.seconds(now), workload.pool.reservation_horizon_seconds
    budget = snapshot.budget_of(snapshot.closed_gates(now), queued.team, queued.project)
    whose = Claimant(queued.team, owner.pk, borrows_again_from=budget.borrows_again_from)
    found = explain.reservable(taken, queued, whose, at, int(length.total_seconds()), horizon)
    return [(datetime.fromtimestamp(w.start, UTC), datetime.fromtimestamp(w.end, UTC)) for w in found]


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


def unkept_without(gpu: Gpu, now: datetime) -> tuple[int, ...]:
    """Reservations to come that can be kept now and could not be without a GPU as it is. Its host is loaded."""
    taken, pool = one_answer.take([gpu.host.pool_id], now), gpu.host.pool_id
    mine = {unit.id for unit in taken.units if unit.gpu == gpu.pk}
    return explain.unkept_without(taken, pool, mine, snapshot.seconds(now))


def promisable_units(
    pool: Pool, *, model: str, profile: str, start: datetime, end: datetime, step_seconds: int, now: datetime
) -> list[tuple[int, int]]:
    """For the calendar: (seconds since the epoch, units that could still be promised for all of that step)."""
    taken = one_answer.take([pool.pk], now)
    window = (snapshot.seconds(start), snapshot.seconds(end), step_seconds, snapshot.seconds(now))
    return windows.free_units(taken, pool.pk, model, profile, *window)
