"""Load the facts from which GPU time is charged, as value types of ``telemetry.core``.

The number of queries does not depend on the number of GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from django.db.backends.postgresql.psycopg_any import NumericRange
from psycopg.types.range import TimestamptzRange

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import PoolKind
from scheduler.models import Allocation, BoundUnit, Gpu, GpuStateChange, HostStateChange, WorkloadKind
from scheduler.state.states import AdminState, LeaseState, RepairState
from telemetry.core.charge_model import (
    GpuCondition,
    GpuConditionChange,
    GpuHold,
    GpuTimeline,
    ReservedSlots,
)
from telemetry.core.charge_pieces import lost_time
from telemetry.money.billing_months import billing_calendar
from telemetry.money.pricing.price_factors import load_price_factors
from telemetry.money.rate_card import load_rates
from telemetry.money.refund_limits import load_refund_limits
from telemetry.sql_values import Microseconds, time_of, time_or_none

HostState = tuple[str, str, str]  # lease state, administrative state, repair state
# The bounds of slots and of the period: a range takes ten times as long to read.
_RANGE_COLUMNS = (
    "slots__startswith",
    "slots__endswith",
    Microseconds("period__startswith"),
    Microseconds("period__endswith"),
)
HEALTHY_HOST_STATE: HostState = (LeaseState.ALIVE, AdminState.IN_SERVICE, RepairState.WELL)


@dataclass
class GpuChargingInputs:
    """One GPU, the ids of its pool and host, and the timeline that determines its charges."""

    id: int
    model: str
    pool: int
    host: int
    team: int | None  # id of the team that owns the static pool; None in other pools
    created_at: datetime
    retired_at: datetime | None
    time: GpuTimeline = field(default_factory=GpuTimeline)


def load_charging_inputs(
    gpu_ids: Collection[int], start: datetime, end: datetime
) -> dict[int, GpuChargingInputs]:
    """Return the charging inputs of these GPUs for ``[start, end)``, by GPU id."""
    gpus = {
        gpu.pk: GpuChargingInputs(
            id=gpu.pk,
            model=gpu.model,
            pool=gpu.pool_id,
            host=gpu.host_id,
            team=gpu.pool.team_id if gpu.pool.kind == PoolKind.STATIC else None,
            created_at=gpu.created_at,
            retired_at=gpu.retired_at,
        )
        for gpu in Gpu.objects.filter(pk__in=gpu_ids).select_related("pool")
    }
    period = TimestamptzRange(start, end)
    holds, bounds = _load_holds(gpus, period), _load_reserved_slots(gpus, period)
    changes = _load_condition_changes(gpus, start, end)
    rates = load_rates({(gpu.pool, gpu.model) for gpu in gpus.values()})
    calendar = billing_calendar()
    for gpu in gpus.values():
        gpu.time = GpuTimeline(
            holds=tuple(holds[gpu.id]),
            bounds=tuple(bounds[gpu.id]),
            changes=tuple(changes[gpu.id]),
            rates=rates[gpu.pool, gpu.model],
            owned=gpu.team is not None,
            calendar=calendar,
        )
    return gpus


def _load_holds(gpus: dict[int, GpuChargingInputs], period: TimestamptzRange) -> dict[int, list[GpuHold]]:
    found: dict[int, list[GpuHold]] = defaultdict(list)
    limits = load_refund_limits({gpu.pool for gpu in gpus.values()})
    factors = load_price_factors()
    # The index of the exclusion constraint finds slots and period at once.
    overlapping = Allocation.objects.filter(slots__overlap=_slots_of(gpus), period__overlap=period)
    rows = overlapping.filter(unit__gpu__in=gpus).values_list(
        "id",
        "unit__gpu_id",
        *_RANGE_COLUMNS,
        "reservation_id",
        "end_code",
        Microseconds("run__checkpoint_at"),
        "workload__kind",
        "workload__priority",
        "workload__type",
    )
    for row in rows.order_by("id"):
        allocation, gpu, low, high, began, ended, reservation, end_code, checkpoint, kind, *work = row
        start, end = time_of(began), time_or_none(ended)
        lost = None
        if end is not None:
            lost = lost_time(
                end_code=end_code,
                started=start,
                ended=end,
                checkpoint=time_or_none(checkpoint),
                keeps_state=kind == WorkloadKind.NOTEBOOK,
                forgiven=limits.at(gpus[gpu].pool, end),
            )
        first = gpu * SLOTS_PER_GPU
        found[gpu].append(
            GpuHold(
                allocation=allocation,
                low=low - first,
                high=high - first,
                start=start,
                end=end,
                reservation=reservation,
                lost_from=lost[0] if lost else None,
                lost_bucket=lost[1] if lost else None,
                # The window of a reservation is charged whether used or not, so its price has no factor.
                factors=() if reservation else factors.steps(gpus[gpu].pool, *work),
            )
        )
    return found


def _load_reserved_slots(gpus: Collection[int], period: TimestamptzRange) -> dict[int, list[ReservedSlots]]:
    found: dict[int, list[ReservedSlots]] = defaultdict(list)
    overlapping = BoundUnit.objects.filter(slots__overlap=_slots_of(gpus), period__overlap=period)
    rows = overlapping.filter(unit__gpu__in=gpus).order_by("id")
    for reservation, gpu, low, high, began, ended in rows.values_list(
        "reservation_id", "unit__gpu_id", *_RANGE_COLUMNS
    ):
        first, start, end = gpu * SLOTS_PER_GPU, time_of(began), time_or_none(ended)
        found[gpu].append(ReservedSlots(reservation, low - first, high - first, start, end))
    return found


def _slots_of(gpus: Collection[int]) -> NumericRange:
    """Return the smallest range that contains the slots of these GPUs; empty without GPUs."""
    if not gpus:
        return NumericRange(empty=True)
    return NumericRange(min(gpus) * SLOTS_PER_GPU, (max(gpus) + 1) * SLOTS_PER_GPU)


def _load_condition_changes(
    gpus: dict[int, GpuChargingInputs], start: datetime, end: datetime
) -> dict[int, list[GpuConditionChange]]:
    """Return the changes of each GPU's condition, derived from the states of the GPU and its host.

    The last change up to ``start`` is included, because it determines the condition at ``start``.
    """
    hosts = {gpu.host for gpu in gpus.values()}
    host_changes: dict[int, list[tuple[datetime, HostState]]] = defaultdict(list)
    last_before = (
        HostStateChange.objects.filter(host__in=hosts, at__lte=start)
        .order_by("host", "-at", "-id")
        .distinct("host")
    )
    after = HostStateChange.objects.filter(host__in=hosts, at__gt=start, at__lt=end).order_by(
        "host", "at", "id"
    )
    for row in (*last_before, *after):
        host_changes[row.host_id].append((row.at, (row.lease_state, row.admin_state, row.repair_state)))
    own: dict[int, list[tuple[datetime, str]]] = defaultdict(list)
    seen_before = (
        GpuStateChange.objects.filter(gpu__in=gpus, at__lte=start)
        .order_by("gpu", "-at", "-id")
        .distinct("gpu")
    )
    seen_after = GpuStateChange.objects.filter(gpu__in=gpus, at__gt=start, at__lt=end).order_by(
        "gpu", "at", "id"
    )
    for seen in (*seen_before, *seen_after):
        own[seen.gpu_id].append((seen.at, seen.repair_state))
    return {gpu.id: _merge_condition_changes(host_changes[gpu.host], own[gpu.id]) for gpu in gpus.values()}


def _merge_condition_changes(
    host: Iterable[tuple[datetime, HostState]], own: Iterable[tuple[datetime, str]]
) -> list[GpuConditionChange]:
    """Merge state changes of a host and of a GPU into changes of the GPU's condition, in order of time."""
    states, repair = HEALTHY_HOST_STATE, str(RepairState.WELL)
    events = sorted(
        [(at, 0, new) for at, new in host] + [(at, 1, new) for at, new in own], key=lambda event: event[:2]
    )
    changes: list[GpuConditionChange] = []
    for at, _, new in events:
        if isinstance(new, str):
            repair = new
        else:
            states = new
        changes.append(GpuConditionChange(at, gpu_condition(states, repair)))
    return changes


def gpu_condition(host: HostState, gpu_repair: str) -> GpuCondition:
    """Return the condition of a GPU from the state of its host and its own repair state."""
    lease, admin, repair = host
    if admin == AdminState.MAINTENANCE:
        return GpuCondition.MAINTENANCE
    if lease == LeaseState.SILENT:
        return GpuCondition.SILENT
    if repair != RepairState.WELL or gpu_repair not in (RepairState.WELL, RepairState.RESHAPING):
        return GpuCondition.UNHEALTHY
    if admin != AdminState.IN_SERVICE or gpu_repair == RepairState.RESHAPING:
        return GpuCondition.MAINTENANCE
    return GpuCondition.WELL


def last_change_in(gpu: GpuChargingInputs, start: datetime, end: datetime) -> datetime | None:
    """Return the last time in ``(start, end]`` at which a hold, a reservation or the condition changed.

    Returns None if nothing changed.
    """
    moments: list[datetime | None] = []
    for hold in gpu.time.holds:
        moments += [hold.start, hold.end]
    for bound in gpu.time.bounds:
        moments += [bound.start, bound.end]
    moments += [change.at for change in gpu.time.changes]
    return max((moment for moment in moments if moment is not None and start < moment <= end), default=None)
