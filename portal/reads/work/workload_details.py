"""Workloads with everything a card or a row shows of them: where they are, what they use, what they cost."""

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

RELATED = ("project__team", "pool", "owner", "reservation", "array")


@dataclass(frozen=True)
class HeldUnit:
    """One unit that a workload holds or held. ``slots``: 840 is one GPU."""

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
    """A workload and what is shown of it. ``run`` is the first of its present attempt; ``ahead_of`` how many wait in its pool."""

    workload: Workload
    run: Run | None = None
    held: list[HeldUnit] = field(default_factory=list)
    had: list[HeldUnit] = field(default_factory=list)  # by its last attempt, once it has ended
    ran: timedelta | None = None  # in all its attempts, once it has ended; None where it was not seen running
    waiting: int = 0
    use: utilisation.WorkloadUtilisation = field(default_factory=utilisation.WorkloadUtilisation)
    cost: Decimal | None = None
    price_per_hour: Decimal | None = None
    eviction: Decision | None = (
        None  # the last time it was told to make room, if it goes now or waits again for that
    )
    stop: ManualStop | None = None  # who stopped it, or is stopping it, by hand
    past: EstimateAccuracy = field(
        default_factory=EstimateAccuracy
    )  # how good expected starts were in its pool, while it waits
    likely: StartRange | None = None  # from when and by when it likely starts, while it waits
    move: ForcedMove | None = (
        None  # why its present (or last) attempt had to leave its host, where that was taken out
    )
    borrows: QuotaUsage | None = (
        None  # its team's, where that holds more of its model than is guaranteed, and it may be told to go
    )

    @property
    def simulated(self) -> bool:
        """Whether readings of its GPUs are simulated."""
        return self.workload.simulated or any(unit.simulated for unit in self.held)

    @property
    def ends_at(self) -> datetime | None:
        """When its longest runtime, or its reservation, is over; None before it is placed."""
        since = min((unit.since for unit in self.held), default=None)
        if since is None:
            return None
        end = since + timedelta(seconds=self.workload.max_runtime_seconds)
        return min(end, self.workload.reservation.end) if self.workload.reservation else end


def workload_details(
    workloads: Iterable[Workload], now: datetime, *, with_use: bool = True
) -> list[WorkloadDetails]:
    """Everything shown of these workloads, in their order. The number of queries does not depend on how many they are."""
    found = {workload.pk: WorkloadDetails(workload) for workload in workloads}
    if not found:
        return []
    for run in Run.objects.filter(workload__in=found, attempt=F("workload__attempt"), rank=0).select_related(
        "host"
    ):
        found[run.workload_id].run = run
    for allocation in _held_or_had(found):
        piece = found[allocation.workload_id]
        (piece.held if allocation.period.upper_inf else piece.had).append(held_unit(allocation))
    made_room = [pk for pk, piece in found.items() if _was_told_to_make_room(piece.workload)]
    evictions = Decision.objects.filter(workload__in=made_room, kind=Decision.Kind.EVICTED)
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
    for pk, ran in _run_seconds(found.values()).items():
        found[pk].ran = ran
    told = expected_starts.start_records_for((piece.workload for piece in found.values()), now)
    counts = queue_lengths({piece.workload.pool_id for piece in found.values()})
    prices = cost_totals.prices(now)
    costs = cost_totals.workload_costs(list(found), now, prices)
    holding = [pk for pk, piece in found.items() if piece.held] if with_use else []
    hosts = {unit.host_id for pk in holding for unit in found[pk].held}
    used = utilisation.utilisation_of(holding, hosts, now)
    for pk, piece in found.items():
        piece.likely, piece.past = told.likely(piece.workload), told.past(piece.workload.pool_id)
        piece.waiting = counts.get(piece.workload.pool_id, 0)
        piece.cost = costs.get(pk)
        piece.use = used.get(pk, piece.use)
        piece.price_per_hour = _price_per_hour(piece, prices)
    _note_borrowing([piece for piece in found.values() if _may_borrow(piece)], now)
    return list(found.values())


def _may_borrow(piece: WorkloadDetails) -> bool:
    workload = piece.workload
    shared = workload.pool.kind == PoolKind.DYNAMIC and workload.reservation_id is None
    return bool(piece.held) and workload.preemptible and shared


def _note_borrowing(pieces: list[WorkloadDetails], now: datetime) -> None:
    """Whoever's guarantee is called back, any preemptible work of a team that holds more than its own may have to go."""
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


def _was_told_to_make_room(workload: Workload) -> bool:
    """Whether it goes because it was told to make room, or waits again after that."""
    return workload.state in TERMINATING_STATES or (
        workload.state == WorkloadState.QUEUED and workload.attempt > 0
    )


def _is_being_evicted(workload: Workload) -> bool:
    return _was_told_to_make_room(workload) or workload.outcome in forced_moves.FORCED_MOVE_CODES


def _run_seconds(pieces: Iterable[WorkloadDetails]) -> dict[int, timedelta]:
    """How long those that have ended ran: each attempt from its first to its last on any host, without the time between and after
    them. A query where one had several attempts or hosts."""
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
    """Open allocations of these workloads, and of those that have ended what their last attempt held; by host and GPU."""
    last = Q(workload__state=WorkloadState.ENDED, run__attempt=F("workload__attempt"))
    return _by_host_and_gpu(
        Allocation.objects.filter(Q(period__upper_inf=True) | last, workload__in=list(workloads))
    )


def _by_host_and_gpu(allocations: QuerySet[Allocation]) -> QuerySet[Allocation]:
    return allocations.select_related("unit__gpu__host").order_by(
        "unit__gpu__host__name", "unit__gpu__index", "slots"
    )


def held_by(workloads: Iterable[int]) -> QuerySet[Allocation]:
    """Open allocations of these workloads, by host and GPU."""
    return _by_host_and_gpu(Allocation.objects.filter(workload__in=list(workloads), period__upper_inf=True))


def queue_lengths(pools: Iterable[int]) -> dict[int, int]:
    """How many wait in each pool, whoever they belong to: a number tells nothing of anybody."""
    rows = (
        Workload.objects.filter(pool__in=pools, state=WorkloadState.QUEUED)
        .values_list("pool_id")
        .annotate(n=Count("pk"))
    )
    return dict(rows)


def own_open_workloads(user: User) -> QuerySet[Workload]:
    """A person's work that has not ended: what runs first, then what starts, then what waits."""
    mine = policy.visible_workloads(user).filter(owner=user).exclude(state=WorkloadState.ENDED)
    return mine.select_related(*RELATED).order_by(F("position").asc(nulls_first=True), "submitted_at", "pk")


def own_ended_workloads(user: User, since: datetime) -> QuerySet[Workload]:
    """A person's work that ended since a moment, the latest first."""
    mine = policy.visible_workloads(user).filter(
        owner=user, state=WorkloadState.ENDED, ended_at__gte=since, simulated=False
    )
    return mine.select_related(*RELATED).order_by("-ended_at", "-pk")


def visible_of_kind(user: User, kind: str) -> QuerySet[Workload]:
    """Every notebook or every job that the person may see."""
    return policy.visible_workloads(user).filter(kind=kind).select_related(*RELATED)


def attempts_of(workload: Workload) -> list[dict[str, object]]:
    """Each attempt of a workload, the latest first: its runs and the units it held."""
    runs = list(workload.runs.select_related("host").order_by("-attempt", "rank"))
    held: dict[int, list[HeldUnit]] = {}
    rows = Allocation.objects.filter(workload=workload).select_related("unit__gpu__host", "run")
    for allocation in rows.order_by("unit__gpu__host__name", "unit__gpu__index", "slots"):
        held.setdefault(allocation.run.attempt, []).append(held_unit(allocation))
    by_number: dict[int, list[Run]] = {}
    for run in runs:
        by_number.setdefault(run.attempt, []).append(run)
    told = forced_moves.forced_moves_of_runs(run.pk for run in runs)
    anew = attempts_without_checkpoint(runs)
    return [
        {
            "number": number,
            "runs": some,
            "held": held.get(number, []),
            "begins_anew": number in anew,
            "move": next((told[run.pk] for run in some if run.pk in told), None),
        }
        for number, some in by_number.items()
    ]


def attempts_without_checkpoint(runs: Iterable[Run]) -> set[int]:
    """The attempts on a host with other homes than those that the last checkpoint before them lies in."""
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
    """Whether it is a notebook rather than a job."""
    return workload.kind == WorkloadKind.NOTEBOOK


def held_unit(allocation: Allocation) -> HeldUnit:
    """What one allocation holds; its unit, GPU and host are loaded."""
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
    """Of what it holds, or, while it waits, of what it asks for when that is whole GPUs of named models."""
    workload = piece.workload
    if piece.held:
        return cost_totals.rounded_sum(
            prices.of(workload.pool_id, unit.model, unit.slots) for unit in piece.held
        )
    if workload.profile != WHOLE_GPU_PROFILE or not workload.models_wanted:
        return None
    dearest = [prices.of(workload.pool_id, model, SLOTS_PER_GPU) for model in workload.models_wanted]
    if any(price is None for price in dearest):
        return None
    return max(price for price in dearest if price is not None) * workload.units * workload.hosts


def filter_by_text(rows: QuerySet[Workload], words: str) -> QuerySet[Workload]:
    """Those whose name, owner, project or team contains the words."""
    return rows.filter(
        Q(name__icontains=words)
        | Q(owner__username__icontains=words)
        | Q(project__name__icontains=words)
        | Q(project__team__name__icontains=words)
    )
