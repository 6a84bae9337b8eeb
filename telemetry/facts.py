"""What decides how GPUs' time is charged, read from rows into the core's values: a fixed number of queries for many GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from psycopg.types.range import TimestamptzRange

from scheduler.core.model import PoolKind
from scheduler.models import Allocation, BoundUnit, Gpu, GpuStateChange, HostStateChange, WorkloadKind
from scheduler.states import AdminState, LeaseState, RepairState
from telemetry.core.charging import SLOTS_PER_GPU, Bound, Change, Condition, GpuTime, Hold, Rate, lost_time
from telemetry.models import Price

HostStates = tuple[str, str, str]  # lease, administrative, repair
WELL: HostStates = (LeaseState.ALIVE, AdminState.IN_SERVICE, RepairState.WELL)


@dataclass
class GpuFacts:
    """One GPU with its pool and its time."""

    id: int
    model: str
    pool: int
    host: int
    team: int | None  # owner of a static pool
    created_at: datetime
    retired_at: datetime | None
    time: GpuTime = field(default_factory=GpuTime)


def load_facts(gpu_ids: Collection[int], start: datetime, end: datetime) -> dict[int, GpuFacts]:
    """The facts of these GPUs that bear on ``[start, end)``, by GPU id."""
    gpus = {
        gpu.pk: GpuFacts(
            id=gpu.pk,
            model=gpu.model,
            pool=gpu.host.pool_id,
            host=gpu.host_id,
            team=gpu.host.pool.team_id if gpu.host.pool.kind == PoolKind.STATIC else None,
            created_at=gpu.created_at,
            retired_at=gpu.retired_at,
        )
        for gpu in Gpu.objects.filter(pk__in=gpu_ids).select_related("host__pool")
    }
    period = TimestamptzRange(start, end)
    holds, bounds = _holds(gpus, period), _bounds(gpus, period)
    changes = _changes(gpus, start, end)
    rates = load_rates({(gpu.pool, gpu.model) for gpu in gpus.values()})
    for gpu in gpus.values():
        gpu.time = GpuTime(
            holds=tuple(holds[gpu.id]),
            bounds=tuple(bounds[gpu.id]),
            changes=tuple(changes[gpu.id]),
            rates=rates[gpu.pool, gpu.model],
            owned=gpu.team is not None,
        )
    return gpus


def _holds(gpus: Collection[int], period: TimestamptzRange) -> dict[int, list[Hold]]:
    found: dict[int, list[Hold]] = defaultdict(list)
    rows = Allocation.objects.filter(unit__gpu__in=gpus, period__overlap=period).values_list(
        "id",
        "unit__gpu_id",
        "slots",
        "period",
        "reservation_id",
        "end_code",
        "run__checkpoint_at",
        "workload__kind",
    )
    for allocation, gpu, slots, held, reservation, end_code, checkpoint, kind in rows.order_by("id"):
        lost = None
        if held.upper is not None:
            lost = lost_time(
                end_code=end_code,
                started=held.lower,
                ended=held.upper,
                checkpoint=checkpoint,
                keeps_state=kind == WorkloadKind.NOTEBOOK,
            )
        first = gpu * SLOTS_PER_GPU
        found[gpu].append(
            Hold(
                allocation=allocation,
                low=slots.lower - first,
                high=slots.upper - first,
                start=held.lower,
                end=held.upper,
                reservation=reservation,
                lost_from=lost[0] if lost else None,
                lost_as=lost[1] if lost else None,
            )
        )
    return found


def _bounds(gpus: Collection[int], period: TimestamptzRange) -> dict[int, list[Bound]]:
    found: dict[int, list[Bound]] = defaultdict(list)
    rows = BoundUnit.objects.filter(unit__gpu__in=gpus, period__overlap=period).order_by("id")
    for reservation, gpu, slots, bound in rows.values_list("reservation_id", "unit__gpu_id", "slots", "period"):
        first = gpu * SLOTS_PER_GPU
        found[gpu].append(Bound(reservation, slots.lower - first, slots.upper - first, bound.lower, bound.upper))
    return found


def _changes(gpus: dict[int, GpuFacts], start: datetime, end: datetime) -> dict[int, list[Change]]:
    """Each GPU's conditions over time, of its host's states and its own."""
    hosts = {gpu.host for gpu in gpus.values()}
    host_changes: dict[int, list[tuple[datetime, HostStates]]] = defaultdict(list)
    last_before = (
        HostStateChange.objects.filter(host__in=hosts, at__lte=start).order_by("host", "-at", "-id").distinct("host")
    )
    after = HostStateChange.objects.filter(host__in=hosts, at__gt=start, at__lt=end).order_by("host", "at", "id")
    for row in (*last_before, *after):
        host_changes[row.host_id].append((row.at, (row.lease_state, row.admin_state, row.repair_state)))
    own: dict[int, list[tuple[datetime, str]]] = defaultdict(list)
    seen_before = GpuStateChange.objects.filter(gpu__in=gpus, at__lte=start).order_by("gpu", "-at", "-id").distinct("gpu")
    seen_after = GpuStateChange.objects.filter(gpu__in=gpus, at__gt=start, at__lt=end).order_by("gpu", "at", "id")
    for seen in (*seen_before, *seen_after):
        own[seen.gpu_id].append((seen.at, seen.repair_state))
    return {gpu.id: _merged(host_changes[gpu.host], own[gpu.id]) for gpu in gpus.values()}


def _merged(host: Iterable[tuple[datetime, HostStates]], own: Iterable[tuple[datetime, str]]) -> list[Change]:
    states, repair = WELL, str(RepairState.WELL)
    events = sorted([(at, 0, new) for at, new in host] + [(at, 1, new) for at, new in own], key=lambda event: event[:2])
    changes: list[Change] = []
    for at, _, new in events:
        if isinstance(new, str):
            repair = new
        else:
            states = new
        changes.append(Change(at, _condition(states, repair)))
    return changes


def _condition(host: HostStates, gpu_repair: str) -> Condition:
    lease, admin, repair = host
    if admin == AdminState.MAINTENANCE:
        return Condition.MAINTENANCE
    if lease == LeaseState.SILENT:
        return Condition.SILENT
    if repair != RepairState.WELL or gpu_repair not in (RepairState.WELL, RepairState.RESHAPING):
        return Condition.UNHEALTHY
    if admin != AdminState.IN_SERVICE or gpu_repair == RepairState.RESHAPING:
        return Condition.MAINTENANCE
    return Condition.WELL


class RateCard:
    """What GPUs cost and are charged from which moment on. A pool's own price stands before the one for every pool."""

    def __init__(self, prices: Iterable[Price]) -> None:
        """``prices`` in order of time."""
        self._own: dict[tuple[int | None, str], list[Price]] = defaultdict(list)
        for price in prices:
            self._own[price.pool_id, price.model].append(price)

    def rates(self, pool: int | None, model: str) -> tuple[Rate, ...]:
        """The lines for a model of a pool (None: of pools without lines of their own), in order of time."""
        general = self._own.get((None, model), [])
        special = self._own.get((pool, model), []) if pool is not None else []
        first_special = special[0].valid_from if special else None
        before = [price for price in general if first_special is None or price.valid_from < first_special]
        return tuple(
            Rate(price.valid_from, price.cost_per_gpu_hour, price.price_per_gpu_hour, price.pk)
            for price in (*before, *special)
        )

    def at(self, pool: int | None, model: str, now: datetime) -> Rate | None:
        """The line in force at a moment; None before the first."""
        return next((rate for rate in reversed(self.rates(pool, model)) if rate.since <= now), None)


def rate_card(models: Collection[str] | None = None) -> RateCard:
    """The rate card of these models (None: all), in one query."""
    prices = Price.objects.order_by("valid_from", "id")
    return RateCard(prices if models is None else prices.filter(model__in=models))


def load_rates(wanted: Collection[tuple[int, str]]) -> dict[tuple[int, str], tuple[Rate, ...]]:
    """The rate card of each (pool id, model), in order of time."""
    card = rate_card({model for _, model in wanted})
    return {(pool, model): card.rates(pool, model) for pool, model in wanted}


def last_boundary(gpu: GpuFacts, start: datetime, end: datetime) -> datetime | None:
    """The last moment of ``(start, end]`` at which something began or ended on the GPU; None when nothing did."""
    moments: list[datetime | None] = []
    for hold in gpu.time.holds:
        moments += [hold.start, hold.end]
    for bound in gpu.time.bounds:
        moments += [bound.start, bound.end]
    moments += [change.at for change in gpu.time.changes]
    return max((moment for moment in moments if moment is not None and start < moment <= end), default=None)
