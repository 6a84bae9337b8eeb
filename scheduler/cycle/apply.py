"""The only place that commits a plan: lock, check again on fresh rows, take what still holds, turn away the rest.

A plan is a proposal about a moment that has passed. Each part is checked by itself, so that one stale placement does
not cost the others.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import F, Q

from scheduler.coordination import locks
from scheduler.core.model.plan import Eviction, Placement, Plan, Refusal, ReservationBinding
from scheduler.core.model.snapshot import RunningWorkload, Snapshot
from scheduler.core.reasons import ReasonCode, ReasonNumbers
from scheduler.cycle import schedulable_hosts
from scheduler.cycle.decayed_use import update_decayed_use
from scheduler.cycle.plan_checks import PlanChecks
from scheduler.cycle.refusal_rows import (
    REASON_FIELDS,
    ChangedRefusal,
    json_numbers,
    may_differ,
    row_differs,
    write_placement_reasons,
    write_reasons,
)
from scheduler.cycle.snapshot_rows import ids_array
from scheduler.models import (
    Allocation,
    BoundUnit,
    Decision,
    Leader,
    Reservation,
    Run,
    Unit,
    Workload,
)
from scheduler.queue import start_estimates
from scheduler.runs import commands
from scheduler.state import nudge
from scheduler.state.isolation import Isolation
from scheduler.state.states import (
    OPEN_RESERVATION_STATES,
    RepairState,
    ReservationState,
    WorkloadState,
    change_state,
    change_states,
)


class StaleEpoch(Exception):
    """Another engine has taken over since this plan's snapshot: nothing of it is written."""


@dataclass(frozen=True, slots=True)
class RejectedItem:
    """A part of the plan that no longer held, and why, in words for the log."""

    item: Placement | Eviction | ReservationBinding
    why: str


@dataclass(slots=True)
class ApplyResult:
    """What became of a plan. ``told`` is what the rows now say of workloads that wait, where that was looked at."""

    accepted: list[Placement | Eviction | ReservationBinding] = field(default_factory=list)
    rejected: list[RejectedItem] = field(default_factory=list)
    reasons_written: int = 0
    told: dict[int, Refusal] = field(default_factory=dict)

    @property
    def changed_something(self) -> bool:
        """Work was started or told to go, a reservation bound, or a reason is another one."""
        return bool(self.accepted or self.reasons_written)


def apply_plan(
    plan: Plan,
    snapshot: Snapshot,
    now: datetime,
    told: Mapping[int, Refusal] | None = None,
    keep: Callable[[], object] | None = None,
) -> ApplyResult:
    """Commit what still holds of ``plan``, in one transaction. Raises StaleEpoch when the leader's epoch is not the plan's.

    ``told`` is what rows that have not changed since are known to say: those refusals are not compared with them again.
    ``keep`` is called inside the transaction, last, when anything was changed: it writes the recording.
    """
    with transaction.atomic():
        leader = locks.leader()
        if leader.epoch != plan.epoch:
            raise StaleEpoch(f"epoch {plan.epoch} is over, {leader.holder} leads with {leader.epoch}")
        applier = _PlanApplication(plan, snapshot, now, told or {})
        applier.bind()
        applier.evict()
        applier.place()
        applier.explain()
        applier.write_reservation_reasons()
        applier.record_decisions()
        applier.notify_pages()
        Leader.objects.filter(pk=leader.pk).update(last_cycle_at=now)
        if keep is not None and applier.done.changed_something:
            keep()
    return applier.done


def may_change_rows(plan: Plan, told: Mapping[int, Refusal]) -> bool:
    """Would applying it write anything, as far as can be said without the rows?"""
    acts = plan.placements or plan.evictions or plan.bindings
    return bool(acts) or any(may_differ(told.get(refusal.workload), refusal) for refusal in plan.refusals)


class _PlanApplication:
    def __init__(self, plan: Plan, snapshot: Snapshot, now: datetime, told: Mapping[int, Refusal]) -> None:
        self.plan, self.snapshot, self.now = plan, snapshot, now
        self.done = ApplyResult()
        self.decisions: list[Decision] = []
        self.topics: dict[str, None] = {}  # of pages that are out of date, in order
        acting = bool(plan.placements or plan.evictions or plan.bindings)
        self.pools = locks.pools(p.id for p in snapshot.pools) if acting else {}
        self.units = self._units()
        for_reservations = {e.for_reservation for e in plan.evictions if e.for_reservation is not None}
        self.reservations = locks.reservations(for_reservations.union(b.reservation for b in plan.bindings))
        hosts = locks.hosts(unit.gpu.host_id for unit in self.units.values())
        for unit in self.units.values():  # as they are under the lock
            unit.gpu.host = hosts[unit.gpu.host_id]
        self.news = self._news(told)
        beneficiaries = {e.for_workload for e in plan.evictions if e.for_workload is not None}
        touched = {p.workload for p in plan.placements} | {e.workload for e in plan.evictions} | beneficiaries
        self.states = locks.workload_states(touched.union(self.news))
        self.workloads = {row.pk: row for row in Workload.objects.filter(pk__in=touched)} if touched else {}
        self.pool_of = {pool.id: pool for pool in snapshot.pools}
        self.facts = (
            PlanChecks(plan, snapshot, self.pools, self.units, self.workloads, now) if acting else None
        )

    def _units(self) -> dict[int, Unit]:
        wanted = {u for p in self.plan.placements for u in p.units} | {
            u for b in self.plan.bindings for u in b.units
        }
        return {u.pk: u for u in Unit.objects.select_related("gpu").filter(pk__in=wanted)} if wanted else {}

    def _news(self, told: Mapping[int, Refusal]) -> dict[int, ChangedRefusal]:
        """The refusals that say something else than the rows do."""
        open_ = {r.workload: r for r in self.plan.refusals if may_differ(told.get(r.workload), r)}
        if not open_:
            return {}
        rows = Workload.objects.filter(pk__in=ids_array(open_), state=WorkloadState.QUEUED)
        news = {}
        for pk, public_id, *said in rows.values_list("pk", "public_id", *REASON_FIELDS):
            row = dict(zip(REASON_FIELDS, said, strict=True))
            if row_differs(row, open_[pk]):
                news[pk] = ChangedRefusal(
                    open_[pk], public_id, row["reason_code"], row["expected_start"] is None
                )
            else:
                moment = row["expected_start"]
                known = None if moment is None else int(moment.timestamp())
                self.done.told[pk] = dataclasses.replace(open_[pk], expected_start=known)
        return news

    def _reject(self, item: Placement | Eviction | ReservationBinding, why: str) -> None:
        self.done.rejected.append(RejectedItem(item, why))

    # -- reservations that begin -----------------------------------------------------------------------------------------

    def bind(self) -> None:
        for binding in self.plan.bindings:
            why = self._bind(binding, self.reservations.get(binding.reservation))
            if why:
                self._reject(binding, why)
            else:
                self.done.accepted.append(binding)
                self._invalidate_page(nudge.CALENDAR)

    def _bind(self, binding: ReservationBinding, reservation: Reservation | None) -> str:
        assert self.facts is not None, "a plan that binds is one that acts"
        problem = self.facts.binding_problem(reservation) or self._unusable_unit_problem(binding.units)
        if problem or reservation is None:
            return problem
        period = DateTimeTZRange(self.now, reservation.end)
        try:
            with transaction.atomic():
                BoundUnit.objects.bulk_create(
                    BoundUnit(
                        reservation=reservation, unit=self.units[u], slots=self.units[u].slots, period=period
                    )
                    for u in binding.units
                )
        except IntegrityError as error:
            return _first_line(error)
        if reservation.state == ReservationState.CONFIRMED:
            change_state(reservation, "state", old=ReservationState.CONFIRMED, new=ReservationState.ACTIVE)
        return ""

    # -- work that has to go ---------------------------------------------------------------------------------------------

    def evict(self) -> None:
        earmarks: dict[int, set[int]] = defaultdict(set)
        running = {r.id: r for r in self.snapshot.running} if self.plan.evictions else {}
        for eviction in self._allowed_evictions(running):
            workload = self.workloads[eviction.workload]
            if not self._evict(eviction, workload):
                self._reject(eviction, ALREADY_STOPPING)
                continue
            self.done.accepted.append(eviction)
            self._add_decision(workload.pk, Decision.Kind.EVICTED, eviction.code, eviction.numbers, eviction)
            if eviction.for_workload is not None:
                earmarks[eviction.for_workload] |= set(running[eviction.workload].units)
        for pk, units in earmarks.items():
            beneficiary = self.workloads.get(pk)
            if beneficiary is not None and beneficiary.state == WorkloadState.QUEUED:
                beneficiary.earmarked_units = sorted(units | set(beneficiary.earmarked_units))
                beneficiary.save(update_fields=["earmarked_units"])

    def _allowed_evictions(self, running: Mapping[int, RunningWorkload]) -> list[Eviction]:
        """The evictions that still may be. Of those that make room for one workload all or none: a part of them would cost
        their work and help nobody; only one that goes already is not missed."""
        assert self.facts is not None or not self.plan.evictions, "a plan that evicts is one that acts"
        whys: dict[int, str] = {}
        for eviction in self.plan.evictions:
            victim = self.workloads.get(eviction.workload)
            if victim is None or victim.state not in EVICTABLE_STATES or eviction.workload not in running:
                whys[eviction.workload] = ALREADY_STOPPING
            elif self.facts is not None:
                whys[eviction.workload] = self.facts.eviction_problem(eviction)
        spoilt = {
            e.for_workload
            for e in self.plan.evictions
            if e.for_workload and whys[e.workload] not in ("", ALREADY_STOPPING)
        }
        lawful = []
        for eviction in self.plan.evictions:
            why = whys[eviction.workload]
            if why:
                self._reject(eviction, why)
            elif eviction.for_workload in spoilt:
                self._reject(
                    eviction,
                    "others who were to make room for the same workload may not be told to go any more",
                )
            else:
                lawful.append(eviction)
        return lawful

    def _evict(self, eviction: Eviction, workload: Workload) -> bool:
        grace = self.pool_of[workload.pool_id].policy.grace_seconds
        stop_at = datetime.fromtimestamp(eviction.stop_at, UTC)
        beneficiary = {
            "evicted_for_workload_id": eviction.for_workload,
            "evicted_for_reservation_id": eviction.for_reservation,
        }
        if workload.state == WorkloadState.RUNNING:
            return commands.give_notice(
                workload,
                code=eviction.code,
                stop_at=stop_at,
                grace_seconds=grace,
                now=self.now,
                **beneficiary,
            )
        if workload.state in (WorkloadState.PLACED, WorkloadState.STARTING):  # has nothing to save yet
            return commands.order_stop(
                workload, code=eviction.code, grace_seconds=grace, now=self.now, **beneficiary
            )
        return False

    # -- work that starts ------------------------------------------------------------------------------------------------

    def place(self) -> None:
        checked = []
        for placement in self.plan.placements:
            why = self._placement_problem(placement)
            if why:
                self._reject(placement, why)
            else:
                checked.append(placement)
        if not checked:
            return
        try:
            with transaction.atomic():
                runs = self._start(checked)
            self._accept(checked, runs)
        except IntegrityError:
            # Somebody holds what looked free: find out whose placement it is, and start the others.
            for placement in checked:
                self._start_alone(placement)

    def _start_alone(self, placement: Placement) -> None:
        try:
            with transaction.atomic():
                runs = self._start([placement])
        except IntegrityError as error:
            runs = self._start_after_last_period(placement)
            if not runs:
                self._reject(placement, _first_line(error))
                return
        self._accept([placement], runs)

    def _start_after_last_period(self, placement: Placement) -> list[Run]:
        """Where the clock was set back, what has ended may have ended later than now: history stays as it is, and who follows holds
        from its end on. No runs where somebody holds one of the units."""
        slots = Q()
        for pk in placement.units:
            slots |= Q(slots__overlap=self.units[pk].slots)
        there = Allocation.objects.filter(slots).filter(
            Q(period__upper_inf=True) | Q(period__endswith__gt=self.now)
        )
        ends = list(there.values_list("period__endswith", flat=True))
        if not ends or None in ends:
            return []
        try:
            with transaction.atomic():
                return self._start([placement], at=max(ends))
        except IntegrityError:
            return []

    def _placement_problem(self, placement: Placement) -> str:
        workload = self.workloads.get(placement.workload)
        if workload is None or workload.state != WorkloadState.QUEUED:
            return "it does not wait any more"
        assert self.facts is not None, "a plan that places is one that acts"
        return self._unusable_unit_problem(placement.units) or self.facts.placement_problem(placement)

    def _unusable_unit_problem(self, units: Iterable[int]) -> str:
        for pk in units:
            unit = self.units.get(pk)
            if unit is None or unit.retired_at is not None or unit.gpu.retired_at is not None:
                return f"unit {pk} is gone"
            if unit.gpu.repair_state != RepairState.WELL:
                return f"GPU {unit.gpu_id} is {unit.gpu.repair_state}"
            host = unit.gpu.host
            pool = self.pools.get(host.pool_id)
            closed = schedulable_hosts.host_unschedulable_code(
                host, pool.isolation if pool else Isolation.NONE
            )
            if closed:
                return CLOSED_HOST_MESSAGES.get(closed, "host {} takes no new work").format(host.name)
        return ""

    def _start(self, placements: Sequence[Placement], at: datetime | None = None) -> list[Run]:
        """Runs and allocations of these from now or ``at`` on, all or none: an IntegrityError undoes them."""
        at = at or self.now
        runs: list[Run] = []
        places: list[tuple[Placement, Run, list[Unit]]] = []
        generations = iter(_next_generations(sum(len(self._by_host(p)) for p in placements)))
        for placement in placements:
            workload = self.workloads[placement.workload]
            for rank, (host, units) in enumerate(self._by_host(placement)):
                run = Run(
                    workload=workload,
                    attempt=workload.attempt + 1,
                    rank=rank,
                    host_id=host,
                    generation=next(generations),
                    placed_at=at,
                    grace_seconds=self.pools[workload.pool_id].grace_seconds,
                )
                runs.append(run)
                places.append((placement, run, units))
        Run.objects.bulk_create(runs)
        Allocation.objects.bulk_create(self._allocations(places, at))
        return runs

    def _by_host(self, placement: Placement) -> list[tuple[int, list[Unit]]]:
        hosts: dict[int, list[Unit]] = defaultdict(list)
        for pk in sorted(placement.units):
            hosts[self.units[pk].gpu.host_id].append(self.units[pk])
        return sorted(hosts.items())

    def _allocations(
        self, places: Sequence[tuple[Placement, Run, list[Unit]]], at: datetime
    ) -> list[Allocation]:
        period = DateTimeTZRange(at, None)
        found: list[Allocation] = []
        left = {placement.workload: placement.borrowed_slots for placement, _, _ in places}
        for placement, run, units in places:
            workload = self.workloads[placement.workload]
            for unit in units:
                borrowed = left[placement.workload] > 0
                left[placement.workload] -= unit.slots.upper - unit.slots.lower
                found.append(
                    Allocation(
                        run=run,
                        workload=workload,
                        project_id=workload.project_id,
                        unit=unit,
                        slots=unit.slots,
                        reservation_id=workload.reservation_id,
                        period=period,
                        borrowed=borrowed,
                    )
                )
        return found

    def _accept(self, placements: Sequence[Placement], runs: Sequence[Run]) -> None:
        commands.order_start(runs, self.now)
        changed = change_states(
            [self.workloads[p.workload] for p in placements],
            "state",
            old=WorkloadState.QUEUED,
            new=WorkloadState.PLACED,
            attempt=F("attempt") + 1,
            position=None,
            expected_start=None,
            blockers=[],
            earmarked_units=[],
            not_before=None,
        )
        assert changed == len(placements), "each was queued under this transaction's lock"
        write_placement_reasons(placements)
        start_estimates.close_placed_estimates([p.workload for p in placements], self.now)
        for placement in placements:
            workload = self.workloads[placement.workload]
            workload.state, workload.attempt = WorkloadState.PLACED, workload.attempt + 1
            self.states[workload.pk] = WorkloadState.PLACED
            self.done.accepted.append(placement)
            self._add_decision(workload.pk, Decision.Kind.PLACED, placement.code, placement.numbers)
            self._invalidate_page(nudge.workload_topic(workload.public_id))
        inside = {w.reservation_id for p in placements if (w := self.workloads[p.workload]).reservation_id}
        if inside:
            Reservation.objects.filter(pk__in=inside, first_used_at__isnull=True).update(
                first_used_at=self.now
            )
        self._invalidate_page(nudge.QUEUE)

    # -- what is said to everybody else ----------------------------------------------------------------------------------

    def explain(self) -> None:
        """Write reasons, positions and expected starts that changed; a Decision where the reason itself is another one."""
        changed, first_starts = [], {}
        for pk, news in sorted(self.news.items()):
            if self.states.get(pk) != WorkloadState.QUEUED:
                continue
            refusal = news.refusal
            if news.code_before != refusal.code:
                self._add_decision(pk, Decision.Kind.REFUSED, refusal.code, refusal.numbers)
                self._invalidate_page(nudge.workload_topic(news.public_id))
            changed.append(refusal)
            if news.is_first_start and refusal.expected_start is not None:
                first_starts[pk] = refusal.expected_start
            self.done.told[pk] = refusal
        if first_starts:
            start_estimates.record_first_estimates(first_starts, self.now)
        if changed:
            write_reasons(changed)
            self._invalidate_page(nudge.QUEUE)
        self.done.reasons_written = len(changed)

    def write_reservation_reasons(self) -> None:
        """Say why reservations that have begun have no units; take it back from those that have them, or wait no longer."""
        said = {unbound.reservation: unbound for unbound in self.plan.unbound}
        open_ = Reservation.objects.filter(
            pool__in=[pool.id for pool in self.snapshot.pools],
            state__in=OPEN_RESERVATION_STATES,
        )
        for row in open_.filter(Q(pk__in=said) | ~Q(reason_code="")).order_by("pk"):
            now_said = said.get(row.pk)
            code = str(now_said.code) if now_said else ""
            numbers = json_numbers(now_said.numbers) if now_said else {}
            if (row.reason_code, row.reason_numbers) == (code, numbers):
                continue
            since = row.reason_at if row.reason_code == code else self.now if code else None
            Reservation.objects.filter(pk=row.pk, state=row.state).update(
                reason_code=code, reason_numbers=numbers, reason_at=since
            )
            self._invalidate_page(nudge.CALENDAR, f"reservation:{row.public_id}")

    def _add_decision(
        self,
        workload: int,
        kind: Decision.Kind,
        code: str,
        numbers: ReasonNumbers,
        eviction: Eviction | None = None,
    ) -> None:
        decision = Decision(
            workload_id=workload,
            kind=kind,
            code=str(code),
            numbers=dict(numbers),
            epoch=self.plan.epoch,
            at=self.now,
            for_workload_id=eviction.for_workload if eviction else None,
            for_reservation_id=eviction.for_reservation if eviction else None,
        )
        self.decisions.append(decision)

    def _invalidate_page(self, *topics: str) -> None:
        self.topics.update(dict.fromkeys(topics))

    def record_decisions(self) -> None:
        """What was decided, and decayed use as of now from what was held since the last cycle that wrote it."""
        Decision.objects.bulk_create(self.decisions, batch_size=1000)
        started = {p.workload for p in self.done.accepted if isinstance(p, Placement)}
        holders = {(q.team, q.pool) for q in self.snapshot.queued if q.id in started} if started else set()
        holders |= {(running.team, running.pool) for running in self.snapshot.running}
        half_lives = {pool.id: pool.policy.half_life_seconds for pool in self.snapshot.pools}
        update_decayed_use(half_lives, self._held, holders, self.now)

    def _held(self) -> dict[tuple[int, int], int]:
        """Slots that each (team, pool) held at the snapshot."""
        slots = {unit.id: unit.slots for unit in self.snapshot.units}
        held: dict[tuple[int, int], int] = defaultdict(int)
        for running in self.snapshot.running:
            held[running.team, running.pool] += sum(slots[u] for u in running.units)
        return held

    def notify_pages(self) -> None:
        """Tell the pages, once each, after the commit."""
        nudge.pages(*self.topics)


CLOSED_HOST_MESSAGES: dict[str, str] = {
    ReasonCode.HOST_FULL: "the disk of host {} is full",
    ReasonCode.ISOLATION_TOO_WEAK: "host {} keeps workloads less apart than its pool demands",
}
EVICTABLE_STATES = (WorkloadState.PLACED, WorkloadState.STARTING, WorkloadState.RUNNING)
ALREADY_STOPPING = "it does not run any more, or goes already"


def _next_generations(count: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('scheduler_generation') FROM generate_series(1, %s)", [count])
        return sorted(int(row[0]) for row in cursor.fetchall())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
