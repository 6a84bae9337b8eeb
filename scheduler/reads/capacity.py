"""Read the capacity, the occupancy and the quota use of pools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Case, CharField, Exists, F, OuterRef, Q, QuerySet, Sum, Value, When

from scheduler.core.promises import reservation_windows
from scheduler.cycle import core_values, request_snapshot_cache, schedulable_hosts
from scheduler.models import (
    Allocation,
    BoundUnit,
    Pool,
    Quota,
    Unit,
)
from scheduler.state.states import RepairState, ReservationState

SLOT_COUNT = F("slots__endswith") - F("slots__startswith")


def free_unit_filter(now: datetime) -> Q:
    """Return the condition for units that can be allocated at ``now``.

    The unit's GPU is well and its host accepts work. No workload holds the unit, and it is not bound to a
    reservation.
    """
    held = Allocation.objects.filter(unit=OuterRef("pk"), period__upper_inf=True)
    bound = BoundUnit.objects.filter(unit=OuterRef("pk"), period__contains=now)
    return (
        ~Exists(held)
        & ~Exists(bound)
        & Q(gpu__repair_state=RepairState.WELL)
        & schedulable_hosts.schedulable_filter("gpu__host")
    )


def free_units(pool: Pool, now: datetime) -> QuerySet[Unit]:
    """Return the free units of a pool."""
    units = Unit.objects.filter(gpu__host__pool=pool, retired_at__isnull=True, gpu__retired_at__isnull=True)
    return units.filter(free_unit_filter(now))


@dataclass(frozen=True, slots=True)
class ModelOccupancy:
    """The slots of one GPU model in a pool (840 slots are one GPU).

    ``bound_unused`` slots are bound to a reservation, and no workload holds them. ``closed`` slots are not
    usable, for example because a GPU is quarantined, or its host is cordoned or silent.
    """

    model: str
    total: int
    held: int
    bound_unused: int
    closed: int

    @property
    def free(self) -> int:
        return self.total - self.held - self.bound_unused - self.closed


def pool_occupancy(pool: Pool, now: datetime) -> list[ModelOccupancy]:
    """Return the occupancy of a pool, one item per GPU model.

    Each slot is counted once. If several conditions apply, held comes before bound and bound before closed.
    """
    taken = request_snapshot_cache.take_cached_snapshot([pool.pk], now)
    held = {unit for running in taken.running for unit in running.units}
    bound = {unit for reservation in taken.reservations for unit in reservation.units}
    accepting = {host.id for host in taken.hosts if host.schedulable}
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for unit in taken.units:
        row = sums[unit.model]
        row[0] += unit.slots
        if unit.id in held:
            row[1] += unit.slots
        elif unit.id in bound:
            row[2] += unit.slots
        elif not unit.healthy or unit.host not in accepting:
            row[3] += unit.slots
    return [ModelOccupancy(name, *sums[name]) for name in sorted(sums)]


def occupancy_of_pools(now: datetime) -> dict[int, list[ModelOccupancy]]:
    """Return the occupancy of every pool, by pool id. Takes one query and no snapshot.

    The rules and the numbers are those of ``pool_occupancy``.
    """
    held = Allocation.objects.filter(period__upper_inf=True).values("unit")
    bound = BoundUnit.objects.filter(period__contains=now).values("unit")
    well = Q(gpu__repair_state=RepairState.WELL) & schedulable_hosts.schedulable_filter("gpu__host")
    state = Case(
        When(pk__in=held, then=Value("held")),
        When(pk__in=bound, then=Value("bound_unused")),
        When(well, then=Value("free")),
        default=Value("closed"),
        output_field=CharField(),
    )
    units = Unit.objects.filter(retired_at=None, gpu__retired_at=None, gpu__host__removed_at=None)
    rows = units.annotate(state=state).values_list("gpu__host__pool_id", "gpu__model", "state").order_by()
    sums: dict[tuple[int, str], dict[str, int]] = defaultdict(
        lambda: {"held": 0, "bound_unused": 0, "free": 0, "closed": 0}
    )
    for pool, model, name, slots in rows.annotate(slot_sum=Sum(SLOT_COUNT)):
        sums[pool, model][name] = slots
    pools: dict[int, list[ModelOccupancy]] = defaultdict(list)
    for (pool, model), of in sorted(sums.items()):
        occupancy = ModelOccupancy(model, sum(of.values()), of["held"], of["bound_unused"], of["closed"])
        pools[pool].append(occupancy)
    return dict(pools)


def held_by_team(teams: Collection[int], now: datetime) -> dict[tuple[int, int, str], int]:
    """Return the number of slots that teams hold, by (team, pool, GPU model). This takes two queries.

    All units that are bound to a team's reservations count, whether a workload uses them or not. Allocations
    inside an active reservation are not counted a second time.
    """
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
    """A team's quota for one GPU model and the slots that it holds. All numbers are slots.

    ``borrow_limit`` is None if borrowing is not limited.
    """

    model: str
    guaranteed: int
    held: int
    borrow_limit: int | None

    @property
    def borrowed(self) -> int:
        return max(0, self.held - self.guaranteed)


def quota_use(*, team: int, pool: int, now: datetime) -> list[QuotaUse]:
    """Return a team's quotas and held slots in a pool, sorted by model. Queued work is not counted."""
    held = held_by_team([team], now)
    quotas = Quota.objects.filter(team=team, pool=pool).order_by("model")
    return [
        QuotaUse(q.model, q.guaranteed_slots, held.get((team, pool, q.model), 0), q.borrow_limit_slots)
        for q in quotas
    ]


def promisable_units(
    pool: Pool, *, model: str, profile: str, start: datetime, end: datetime, step_seconds: int, now: datetime
) -> list[tuple[int, int]]:
    """Return (time, number of units) for each step of ``step_seconds`` from ``start`` to ``end``.

    The time is the start of the step, in seconds since the epoch. The number counts the units that can be
    promised to a reservation for the whole step.
    """
    taken = request_snapshot_cache.take_cached_snapshot([pool.pk], now)
    window = (
        core_values.epoch_seconds(start),
        core_values.epoch_seconds(end),
        step_seconds,
        core_values.epoch_seconds(now),
    )
    return reservation_windows.free_units_by_time(taken, pool.pk, model, profile, *window)
