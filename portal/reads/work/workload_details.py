"""Read workloads with the details that pages show: placement, utilisation, cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from django.db.models import Count, F, Max, Min, Q, QuerySet

from portal import policy
from portal.models import User
from portal.reads.money import cost_totals
from portal.reads.work import expected_starts, forced_moves, manual_stops, utilisation
from portal.reads.work.expected_starts import StartRange
from portal.reads.work.forced_moves import ForcedMove
from portal.reads.work.manual_stops import ManualStop
from portal.reads.work.team_summaries import QuotaUsage, quota_usage_of
from scheduler.core.explain.start_ranges import EstimateAccuracy
from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE
from scheduler.core.model.snapshot import PoolKind
from scheduler.models import (
    Allocation,
    Decision,
    Quota,
    Run,
    Workload,
    WorkloadKind,
)
from scheduler.reads import capacity as engine
from scheduler.state.states import TERMINATING_STATES, WorkloadState
from scheduler.sync.home_volumes import has_other_storage
from telemetry.alerts.postponements import PlannedStop, planned_stops

RELATED = ("project__team", "pool", "owner", "reservation", "array")


@dataclass(frozen=True)
class HeldUnit:
    """One unit that a workload holds or held. A whole GPU has 840 ``slots``."""

    host: str
    host_id: int
    gpu: int
    model: str
    profile: str
    uuid: str
    slots: int
    simulated: bool
    since: datetime


@dataclass
class WorkloadDetails:
    """A workload with its details.

    ``run`` is the run on the first host (rank 0) of its present attempt. ``waiting`` is the number of waiting
    workloads in its pool.
    """

    workload: Workload
    run: Run | None = None
    held: list[HeldUnit] = field(default_factory=list)
    had: list[HeldUnit] = field(default_factory=list)  # units of the last attempt of an ended workload
    ran: timedelta | None = None  # runtime of all attempts of an ended workload; None if it never ran
    waiting: int = 0
    use: utilisation.WorkloadUtilisation = field(default_factory=utilisation.WorkloadUtilisation)
    cost: cost_totals.CurrencySums | None = None
    cost_hidden: bool = False  # the viewer may not see its charges; ``cost`` is None
    price_per_hour: Decimal | None = None
    # The last preemption, if the workload is stopping, or waits again after an attempt.
    eviction: Decision | None = None
    stop: ManualStop | None = None  # the manual stop, if any
    # Accuracy of past start forecasts in its pool, for workloads that wait.
    past: EstimateAccuracy = field(default_factory=EstimateAccuracy)
    likely: StartRange | None = None  # range in which it is likely to start, while it waits
    move: ForcedMove | None = None  # why the workload had to leave its host in its present or last attempt
    planned_stop: PlannedStop | None = None  # because the job does not use its GPUs
    borrows: QuotaUsage | None = None  # its team's quota, if the team borrows and the workload may be evicted

    @property
    def simulated(self) -> bool:
        """Return True if the readings of its GPUs are simulated."""
        return self.workload.simulated or any(unit.simulated for unit in self.held)

    @property
    def ends_at(self) -> datetime | None:
        """Return the end of the runtime limit, or the end of the reservation if that is earlier.

        Return None while the workload holds no units.
        """
        since = min((unit.since for unit in self.held), default=None)
        if since is None:
            return None
        end = since + timedelta(seconds=self.workload.max_runtime_seconds)
        return min(end, self.workload.reservation.end) if self.workload.reservation else end


def workload_details(
    workloads: Iterable[Workload], viewer: User, now: datetime, *, with_use: bool = True
) -> list[WorkloadDetails]:
    """Return the details of these workloads, in their order.

    Charges that the viewer may not see are left out. The number of queries does not depend on the number of
    workloads.
    """
    found = {workload.pk: WorkloadDetails(workload) for workload in workloads}
    if not found:
        return []
    _add_runs_and_units(found)
    _add_endings(found)
    _add_queue_forecasts(found, now)
    _add_use_and_cost(found, viewer, now, with_use)
    _note_borrowing([piece for piece in found.values() if _may_borrow(piece)], now)
    return list(found.values())


def _add_runs_and_units(found: dict[int, WorkloadDetails]) -> None:
    """Add the present run and its units. For an ended workload, add its last units and its runtime."""
    runs = Run.objects.filter(workload__in=found, attempt=F("workload__attempt"), rank=0)
    for run in runs.select_related("host"):
        found[run.workload_id].run = run
    for allocation in _held_or_had(found):
        piece = found[allocation.workload_id]
        (piece.held if allocation.period.upper_inf else piece.had).append(held_unit(allocation))
    for pk, ran in _run_seconds(found.values()).items():
        found[pk].ran = ran


def _add_endings(found: dict[int, WorkloadDetails]) -> None:
    """Add the cause of a stop: a preemption, a person, or a host that was taken out of service.

    Add the planned stops of jobs that do not use their GPUs.
    """
    running = [pk for pk, piece in found.items() if _may_stop_unused(piece.workload)]
    for pk, planned in (planned_stops(running) if running else {}).items():
        found[pk].planned_stop = planned
    evicted = [pk for pk, piece in found.items() if _was_preempted(piece.workload)]
    evictions = Decision.objects.filter(workload__in=evicted, kind=Decision.DecisionKind.EVICTED)
    for decision in evictions.order_by("workload_id", "-at", "-pk").distinct("workload_id"):
        found[decision.workload_id].eviction = decision
    for pk, stop in manual_stops.manual_stops_of(piece.workload for piece in found.values()).items():
        found[pk].stop = stop
    gone = {
        piece.run.pk: piece
        for piece in found.values()
        if piece.run is not None and _is_being_evicted(piece.workload)
    }
    if gone:
        for run_id, move in forced_moves.forced_moves_of_runs(gone).items():
            gone[run_id].move = move


def _may_stop_unused(workload: Workload) -> bool:
    is_job = workload.kind == WorkloadKind.JOB
    return is_job and workload.state == WorkloadState.RUNNING and not workload.simulated


def _add_queue_forecasts(found: dict[int, WorkloadDetails], now: datetime) -> None:
    """Add the length of the queue and the range of the expected start."""
    records = expected_starts.start_records_for((piece.workload for piece in found.values()), now)
    counts = queue_lengths({piece.workload.pool_id for piece in found.values()})
    for piece in found.values():
        piece.likely, piece.past = records.likely(piece.workload), records.past(piece.workload.pool_id)
        piece.waiting = counts.get(piece.workload.pool_id, 0)


def _add_use_and_cost(found: dict[int, WorkloadDetails], viewer: User, now: datetime, with_use: bool) -> None:
    """Add the utilisation of held units, the price per hour, and the cost so far if the viewer may see it."""
    prices, may_see = cost_totals.prices(now), policy.charge_right(viewer)
    seen = {pk for pk, piece in found.items() if may_see(piece.workload)}
    costs = cost_totals.workload_costs(seen, now, prices)
    holding = [pk for pk, piece in found.items() if piece.held] if with_use else []
    hosts = {unit.host_id for pk in holding for unit in found[pk].held}
    used = utilisation.utilisation_of(holding, hosts, now)
    if with_use:
        ended = [pk for pk, piece in found.items() if piece.workload.state == WorkloadState.ENDED]
        used |= utilisation.mean_use_of_ended(ended)
    for pk, piece in found.items():
        piece.cost, piece.cost_hidden = costs.get(pk), pk not in seen
        piece.use = used.get(pk, piece.use)
        piece.price_per_hour = _price_per_hour(piece, prices)


def _may_borrow(piece: WorkloadDetails) -> bool:
    workload = piece.workload
    shared = workload.pool.kind == PoolKind.DYNAMIC and workload.reservation_id is None
    return bool(piece.held) and workload.preemptible and shared


def _note_borrowing(pieces: list[WorkloadDetails], now: datetime) -> None:
    """Set ``borrows`` for workloads whose team holds more GPUs of the model than its guarantee.

    The engine may evict any preemptible workload of such a team when another team needs its own guarantee.
    """
    if not pieces:
        return
    teams = {piece.workload.project.team_id for piece in pieces}
    quotas = Quota.objects.filter(team__in=teams, pool__in={piece.workload.pool_id for piece in pieces})
    held = engine.held_by_team(teams, now)
    lines = {
        (quota.team_id, quota.pool_id, quota.model): quota_usage_of(quota, held)
        for quota in quotas.select_related("pool")
    }
    for piece in pieces:
        line = lines.get((piece.workload.project.team_id, piece.workload.pool_id, piece.held[0].model))
        piece.borrows = line if line is not None and line.borrowed else None


def _was_preempted(workload: Workload) -> bool:
    """Return True if the workload may have been preempted.

    This is assumed of a workload that is stopping for any reason, or that waits again after an attempt.
    """
    return workload.state in TERMINATING_STATES or (
        workload.state == WorkloadState.QUEUED and workload.attempt > 0
    )


def _is_being_evicted(workload: Workload) -> bool:
    return _was_preempted(workload) or workload.outcome in forced_moves.FORCED_MOVE_CODES


def _run_seconds(pieces: Iterable[WorkloadDetails]) -> dict[int, timedelta]:
    """Return the runtime of ended workloads, by workload id: the sum over their attempts.

    An attempt lasts from its first start to its last end on any host. The time between attempts does not
    count. Workloads with several attempts or hosts need one more query.
    """
    ended = [piece for piece in pieces if piece.workload.ended_at is not None]
    ran = {
        piece.workload.pk: piece.run.ended_at - piece.run.running_at
        for piece in ended
        if piece.run is not None and piece.run.running_at is not None and piece.run.ended_at is not None
    }
    several = [piece.workload.pk for piece in ended if piece.workload.attempt > 1 or piece.workload.hosts > 1]
    if several:
        runs = Run.objects.filter(workload__in=several, running_at__isnull=False, ended_at__isnull=False)
        each = runs.values_list("workload_id", "attempt").annotate(
            first=Min("running_at"), last=Max("ended_at")
        )
        ran |= dict.fromkeys({workload for workload, *_ in each}, timedelta(0))
        for workload, _, first, last in each:
            ran[workload] += last - first
    return ran


def _held_or_had(workloads: Iterable[int]) -> QuerySet[Allocation]:
    """Return open allocations and, for ended workloads, the allocations of their last attempt.

    They are sorted by host and GPU.
    """
    last = Q(workload__state=WorkloadState.ENDED, run__attempt=F("workload__attempt"))
    return _by_host_and_gpu(
        Allocation.objects.filter(Q(period__upper_inf=True) | last, workload__in=list(workloads))
    )


def _by_host_and_gpu(allocations: QuerySet[Allocation]) -> QuerySet[Allocation]:
    return allocations.select_related("unit__gpu__host").order_by(
        "unit__gpu__host__name", "unit__gpu__index", "slots"
    )


def held_by(workloads: Iterable[int]) -> QuerySet[Allocation]:
    """Return the open allocations of these workloads, sorted by host and GPU."""
    return _by_host_and_gpu(Allocation.objects.filter(workload__in=list(workloads), period__upper_inf=True))


def queue_lengths(pools: Iterable[int]) -> dict[int, int]:
    """Return the number of waiting workloads of all teams in each pool. Everybody may see this number."""
    rows = (
        Workload.objects.filter(pool__in=pools, state=WorkloadState.QUEUED)
        .values_list("pool_id")
        .annotate(n=Count("pk"))
    )
    return dict(rows)


def own_open_workloads(user: User) -> QuerySet[Workload]:
    """Return a person's workloads that have not ended.

    Workloads without a queue position, such as running ones, come first. The others are in queue order.
    """
    mine = policy.visible_workloads(user).filter(owner=user).exclude(state=WorkloadState.ENDED)
    return mine.select_related(*RELATED).order_by(F("position").asc(nulls_first=True), "submitted_at", "pk")


def own_ended_workloads(user: User, since: datetime) -> QuerySet[Workload]:
    """Return a person's workloads that ended at ``since`` or later, latest first.

    Simulated workloads are left out.
    """
    mine = policy.visible_workloads(user).filter(
        owner=user, state=WorkloadState.ENDED, ended_at__gte=since, simulated=False
    )
    return mine.select_related(*RELATED).order_by("-ended_at", "-pk")


def visible_of_kind(user: User, kind: str) -> QuerySet[Workload]:
    """Return the visible workloads of one kind: notebooks or jobs."""
    return policy.visible_workloads(user).filter(kind=kind).select_related(*RELATED)


def attempts_of(workload: Workload) -> list[dict[str, object]]:
    """Return the attempts of a workload, latest first, with their runs and the units they held."""
    runs = list(workload.runs.select_related("host").order_by("-attempt", "rank"))
    held: dict[int, list[HeldUnit]] = {}
    rows = Allocation.objects.filter(workload=workload).select_related("unit__gpu__host", "run")
    for allocation in rows.order_by("unit__gpu__host__name", "unit__gpu__index", "slots"):
        held.setdefault(allocation.run.attempt, []).append(held_unit(allocation))
    by_number: dict[int, list[Run]] = {}
    for run in runs:
        by_number.setdefault(run.attempt, []).append(run)
    moves = forced_moves.forced_moves_of_runs(run.pk for run in runs)
    anew = attempts_without_checkpoint(runs)
    return [
        {
            "number": number,
            "runs": some,
            "held": held.get(number, []),
            "begins_anew": number in anew,
            "move": next((moves[run.pk] for run in some if run.pk in moves), None),
        }
        for number, some in by_number.items()
    ]


def attempts_without_checkpoint(runs: Iterable[Run]) -> set[int]:
    """Return the numbers of the attempts that could not resume from an existing checkpoint.

    The last checkpoint before such an attempt is in a storage that a host of the attempt does not use.
    """
    found, saved = set(), None
    for run in sorted(runs, key=lambda run: (run.attempt, run.rank)):
        if (
            saved is not None
            and saved.attempt < run.attempt
            and has_other_storage(saved.host.storage_id, run.host)
        ):
            found.add(run.attempt)
        if run.checkpoint_at is not None:
            saved = run
    return found


def is_notebook(workload: Workload) -> bool:
    """Return True for a notebook, False for a job."""
    return workload.kind == WorkloadKind.NOTEBOOK


def held_unit(allocation: Allocation) -> HeldUnit:
    """Return the unit of one allocation. The caller has loaded the allocation's unit, GPU and host."""
    gpu = allocation.unit.gpu
    return HeldUnit(
        host=gpu.host.name,
        host_id=gpu.host_id,
        gpu=gpu.index,
        model=gpu.model,
        profile=allocation.unit.profile,
        uuid=allocation.unit.uuid,
        slots=allocation.slots.upper - allocation.slots.lower,
        simulated=gpu.host.simulated,
        since=allocation.period.lower,
    )


def _price_per_hour(piece: WorkloadDetails, prices: cost_totals.Prices) -> Decimal | None:
    """Return the price per hour of the held units, or of the request if the workload holds none.

    A request has a price only if it names its models and asks for whole GPUs; otherwise return None. If it
    names several models, the most expensive counts.
    """
    workload = piece.workload
    work, in_reservation = (workload.priority, workload.type), workload.reservation_id is not None

    def price_of(model: str, slots: int) -> Decimal | None:
        return prices.of_work(workload.pool_id, model, work, slots, in_reservation=in_reservation)

    if piece.held:
        return cost_totals.rounded_sum(
            (price_of(unit.model, unit.slots) for unit in piece.held), prices.currency
        )
    if workload.profile != WHOLE_GPU_PROFILE or not workload.models_wanted:
        return None
    dearest = [price_of(model, SLOTS_PER_GPU) for model in workload.models_wanted]
    if any(price is None for price in dearest):
        return None
    return max(price for price in dearest if price is not None) * workload.units * workload.hosts


def filter_by_text(rows: QuerySet[Workload], words: str) -> QuerySet[Workload]:
    """Keep workloads whose name, owner, project or team contains the words."""
    return rows.filter(
        Q(name__icontains=words)
        | Q(owner__username__icontains=words)
        | Q(project__name__icontains=words)
        | Q(project__team__name__icontains=words)
    )
