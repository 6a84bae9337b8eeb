"""Commit a plan.

This module locks the rows, and checks every placement, eviction and binding of the plan against the locked
rows. It writes the items that are still valid and rejects the others. The plan was made from an older
snapshot, so some items may be outdated. Each item is checked separately, so that one outdated placement does
not affect the other placements. Only this module commits plans.
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
    RunsAs,
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
    """Another engine has become the leader since the plan's snapshot. Nothing of the plan is written."""


@dataclass(frozen=True, slots=True)
class RejectedItem:
    """An item of the plan that is no longer valid, and the problem as a text for the log."""

    item: Placement | Eviction | ReservationBinding
    problem: str


@dataclass(slots=True)
class ApplyResult:
    """The result of committing a plan.

    ``reported`` maps the id of a waiting workload to the refusal that the workload's row shows now. A refusal
    is the reason why the workload waits, its queue position and its expected start. A workload is absent if
    its row was not compared with the plan, or if the workload is no longer queued.
    """

    accepted: list[Placement | Eviction | ReservationBinding] = field(default_factory=list)
    rejected: list[RejectedItem] = field(default_factory=list)
    reasons_written: int = 0
    reported: dict[int, Refusal] = field(default_factory=dict)

    @property
    def changed_something(self) -> bool:
        """Return True if work was started or evicted, a reservation was bound, or a refusal was rewritten."""
        return bool(self.accepted or self.reasons_written)


def apply_plan(
    plan: Plan,
    snapshot: Snapshot,
    now: datetime,
    reported: Mapping[int, Refusal] | None = None,
    write_recording: Callable[[], object] | None = None,
) -> ApplyResult:
    """Commit the items of ``plan`` that are still valid, in one transaction.

    ``reported`` maps a workload's id to the refusal that its row is known to show. The row is not read if the
    plan has an equal refusal, or one whose expected start differs only by seconds (see ``may_differ``).
    ``write_recording`` is called last inside the transaction, if ``changed_something`` of the result is True.
    Raises StaleEpoch if the leader's epoch differs from the plan's epoch.
    """
    with transaction.atomic():
        leader = locks.leader()
        if leader.epoch != plan.epoch:
            raise StaleEpoch(f"epoch {plan.epoch} is over, {leader.holder} leads with {leader.epoch}")
        application = _PlanApplication(plan, snapshot, now, reported or {})
        application.bind()
        application.evict()
        application.place()
        application.write_reasons()
        application.write_reservation_reasons()
        application.record_decisions()
        application.notify_pages()
        Leader.objects.filter(pk=leader.pk).update(last_cycle_at=now)
        if write_recording is not None and application.result.changed_something:
            write_recording()
    return application.result


def may_change_rows(plan: Plan, reported: Mapping[int, Refusal]) -> bool:
    """Return True if the plan starts, evicts or binds something, or may change the refusal of a workload.

    ``reported`` maps a workload's id to the refusal that its row is known to show. This function reads no
    rows.
    """
    acts = plan.placements or plan.evictions or plan.bindings
    return bool(acts) or any(may_differ(reported.get(refusal.workload), refusal) for refusal in plan.refusals)


def _touched_workloads(plan: Plan) -> set[int]:
    """Return the ids of workloads that the plan starts or evicts, or that its evictions make room for."""
    beneficiaries = {e.for_workload for e in plan.evictions if e.for_workload is not None}
    return {p.workload for p in plan.placements} | {e.workload for e in plan.evictions} | beneficiaries


class _PlanApplication:
    """The application of one plan: the locked rows, the checks and the collected results."""

    def __init__(
        self, plan: Plan, snapshot: Snapshot, now: datetime, reported: Mapping[int, Refusal]
    ) -> None:
        self.plan, self.snapshot, self.now = plan, snapshot, now
        self.result = ApplyResult()
        self.decisions: list[Decision] = []
        self.topics: dict[str, None] = {}  # topics of the pages to refresh: an ordered set
        acting = bool(plan.placements or plan.evictions or plan.bindings)
        self.pools = locks.pools(p.id for p in snapshot.pools) if acting else {}
        self.units = self._units()
        for_reservations = {e.for_reservation for e in plan.evictions if e.for_reservation is not None}
        self.reservations = locks.reservations(for_reservations.union(b.reservation for b in plan.bindings))
        hosts = locks.hosts(unit.gpu.host_id for unit in self.units.values())
        for unit in self.units.values():  # Use the rows that were read under the lock.
            unit.gpu.host = hosts[unit.gpu.host_id]
        self.changed_refusals = self._changed_refusals(reported)
        touched = _touched_workloads(plan)
        self.states = locks.workload_states(touched.union(self.changed_refusals))
        self.workloads = {row.pk: row for row in Workload.objects.filter(pk__in=touched)} if touched else {}
        self.pool_of = {pool.id: pool for pool in snapshot.pools}
        self.checks = (
            PlanChecks(plan, snapshot, self.pools, self.units, self.workloads, now) if acting else None
        )

    def _units(self) -> dict[int, Unit]:
        unit_ids = {u for p in self.plan.placements for u in p.units} | {
            u for b in self.plan.bindings for u in b.units
        }
        return (
            {u.pk: u for u in Unit.objects.select_related("gpu").filter(pk__in=unit_ids)} if unit_ids else {}
        )

    def _changed_refusals(self, reported: Mapping[int, Refusal]) -> dict[int, ChangedRefusal]:
        """Return, by workload id, the refusals that differ from the rows of queued workloads."""
        candidates = {r.workload: r for r in self.plan.refusals if may_differ(reported.get(r.workload), r)}
        if not candidates:
            return {}
        rows = Workload.objects.filter(pk__in=ids_array(candidates), state=WorkloadState.QUEUED)
        changes = {}
        for pk, public_id, *values in rows.values_list("pk", "public_id", *REASON_FIELDS):
            row = dict(zip(REASON_FIELDS, values, strict=True))
            if row_differs(row, candidates[pk]):
                changes[pk] = ChangedRefusal(
                    candidates[pk], public_id, row["reason_code"], row["expected_start"] is None
                )
            else:
                written = row["expected_start"]
                known = None if written is None else int(written.timestamp())
                self.result.reported[pk] = dataclasses.replace(candidates[pk], expected_start=known)
        return changes

    def _reject(self, item: Placement | Eviction | ReservationBinding, why: str) -> None:
        self.result.rejected.append(RejectedItem(item, why))

    # -- reservations that start --------------------------------------------------------------------

    def bind(self) -> None:
        """Bind units to reservations that have started."""
        for binding in self.plan.bindings:
            why = self._bind(binding, self.reservations.get(binding.reservation))
            if why:
                self._reject(binding, why)
            else:
                self.result.accepted.append(binding)
                self._invalidate_page(nudge.CALENDAR)

    def _bind(self, binding: ReservationBinding, reservation: Reservation | None) -> str:
        assert self.checks is not None, "the checks exist if the plan has bindings"
        problem = self.checks.binding_problem(reservation) or self._unusable_unit_problem(binding.units)
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
        self.checks.note_binding(binding)
        if reservation.state == ReservationState.CONFIRMED:
            change_state(reservation, "state", old=ReservationState.CONFIRMED, new=ReservationState.ACTIVE)
        return ""

    # -- evictions ----------------------------------------------------------------------------------

    def evict(self) -> None:
        """Evict workloads. Earmark their units for the queued workload that each eviction makes room for."""
        earmarks: dict[int, set[int]] = defaultdict(set)
        victim_teams: dict[int, set[int]] = defaultdict(set)
        running = {r.id: r for r in self.snapshot.running} if self.plan.evictions else {}
        for eviction in self._allowed_evictions(running):
            workload = self.workloads[eviction.workload]
            if not self._evict(eviction, workload):
                self._reject(eviction, ALREADY_STOPPING)
                continue
            self.result.accepted.append(eviction)
            self._add_decision(
                workload.pk, Decision.DecisionKind.EVICTED, eviction.code, eviction.numbers, eviction
            )
            if eviction.for_workload is not None:
                earmarks[eviction.for_workload] |= set(running[eviction.workload].units)
                victim_teams[eviction.for_workload].add(running[eviction.workload].team)
        for pk, units in earmarks.items():
            beneficiary = self.workloads.get(pk)
            if beneficiary is not None and beneficiary.state == WorkloadState.QUEUED:
                beneficiary.earmarked_units = sorted(units | set(beneficiary.earmarked_units))
                beneficiary.room_made_by_own_team = (
                    victim_teams[pk] == {self._team_of_queued(pk)}
                    and beneficiary.room_made_by_own_team is not False
                )
                beneficiary.save(update_fields=["earmarked_units", "room_made_by_own_team"])

    def _team_of_queued(self, workload: int) -> int:
        assert self.checks is not None, "the checks exist if the plan has evictions"
        return self.checks.snapshot_queued[workload].team

    def _allowed_evictions(self, running: Mapping[int, RunningWorkload]) -> list[Eviction]:
        """Return the evictions that are still allowed.

        All evictions that make room for one workload are allowed together or not at all. If only a part of
        them were allowed, work would be stopped without making enough room. There is one exception: a victim
        that no longer runs or is already stopping does not affect the other evictions.
        """
        assert self.checks is not None or not self.plan.evictions, "the checks exist if the plan evicts"
        problems: dict[int, str] = {}
        for eviction in self.plan.evictions:
            victim = self.workloads.get(eviction.workload)
            if victim is None or victim.state not in EVICTABLE_STATES or eviction.workload not in running:
                problems[eviction.workload] = ALREADY_STOPPING
            elif self.checks is not None:
                problems[eviction.workload] = self.checks.eviction_problem(eviction)
        failed_beneficiaries = {
            e.for_workload
            for e in self.plan.evictions
            if e.for_workload and problems[e.workload] not in ("", ALREADY_STOPPING)
        }
        allowed = []
        for eviction in self.plan.evictions:
            problem = problems[eviction.workload]
            if problem:
                self._reject(eviction, problem)
            elif eviction.for_workload in failed_beneficiaries:
                self._reject(
                    eviction,
                    "another eviction for the same workload is no longer allowed",
                )
            else:
                allowed.append(eviction)
        return allowed

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
        if workload.state in (
            WorkloadState.PLACED,
            WorkloadState.STARTING,
        ):  # it does not run yet, so it has nothing to save
            return commands.order_stop(
                workload, code=eviction.code, grace_seconds=grace, now=self.now, **beneficiary
            )
        return False

    # -- placements ---------------------------------------------------------------------------------

    def place(self) -> None:
        """Start the placed workloads on their units, all together if possible."""
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
            # An existing allocation of a unit overlaps a new one. Start the placements one by one, so that
            # only conflicting placements are rejected.
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
        """Create the placement's runs and return them.

        The runs start at the latest end of the units' ended allocations. If the clock was set back, this end
        can be later than now. Ended allocations stay unchanged. Return an empty list if a unit is still held,
        or if no ended allocation ends later than now.
        """
        slots = Q()
        for pk in placement.units:
            slots |= Q(slots__overlap=self.units[pk].slots)
        conflicting = Allocation.objects.filter(slots).filter(
            Q(period__upper_inf=True) | Q(period__endswith__gt=self.now)
        )
        ends = list(conflicting.values_list("period__endswith", flat=True))
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
            return "it is no longer queued"
        assert self.checks is not None, "the checks exist if the plan has placements"
        return self._unusable_unit_problem(placement.units) or self.checks.placement_problem(placement)

    def _unusable_unit_problem(self, units: Iterable[int]) -> str:
        for pk in units:
            unit = self.units.get(pk)
            if unit is None or unit.retired_at is not None or unit.gpu.retired_at is not None:
                return f"unit {pk} is retired"
            if unit.gpu.repair_state != RepairState.WELL:
                return f"GPU {unit.gpu_id} is {unit.gpu.repair_state}"
            host = unit.gpu.host
            pool = self.pools.get(host.pool_id)
            unschedulable = schedulable_hosts.host_unschedulable_code(
                host, pool.isolation if pool else Isolation.NONE, pool.runs_as if pool else RunsAs.TEAM
            )
            if unschedulable:
                return CLOSED_HOST_MESSAGES.get(unschedulable, "host {} takes no new work").format(host.name)
        return ""

    def _start(self, placements: Sequence[Placement], at: datetime | None = None) -> list[Run]:
        """Create the runs and allocations of all placements. They start at ``at`` (default: ``self.now``).

        Raises IntegrityError if a unit is held. The caller's savepoint then discards all of them.
        """
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
        allocations: list[Allocation] = []
        borrowed_left = {placement.workload: placement.borrowed_slots for placement, _, _ in places}
        for placement, run, units in places:
            workload = self.workloads[placement.workload]
            for unit in units:
                borrowed = borrowed_left[placement.workload] > 0
                borrowed_left[placement.workload] -= unit.slots.upper - unit.slots.lower
                allocations.append(
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
        return allocations

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
            room_made_by_own_team=None,
            not_before=None,
        )
        assert changed == len(placements), "every workload was queued under this transaction's lock"
        write_placement_reasons(placements)
        start_estimates.close_placed_estimates([p.workload for p in placements], self.now)
        for placement in placements:
            workload = self.workloads[placement.workload]
            workload.state, workload.attempt = WorkloadState.PLACED, workload.attempt + 1
            self.states[workload.pk] = WorkloadState.PLACED
            self.result.accepted.append(placement)
            self._add_decision(workload.pk, Decision.DecisionKind.PLACED, placement.code, placement.numbers)
            self._invalidate_page(nudge.workload_topic(workload.public_id))
        used_reservations = {
            w.reservation_id for p in placements if (w := self.workloads[p.workload]).reservation_id
        }
        if used_reservations:
            Reservation.objects.filter(pk__in=used_reservations, first_used_at__isnull=True).update(
                first_used_at=self.now
            )
        self._invalidate_page(nudge.QUEUE)

    # -- reasons, decisions and nudges --------------------------------------------------------------

    def write_reasons(self) -> None:
        """Write the reasons, positions and expected starts that changed.

        Add a Decision for each workload whose reason code changed.
        """
        changed, first_starts = [], {}
        for pk, change in sorted(self.changed_refusals.items()):
            if self.states.get(pk) != WorkloadState.QUEUED:
                continue
            refusal = change.refusal
            if change.code_before != refusal.code:
                self._add_decision(pk, Decision.DecisionKind.REFUSED, refusal.code, refusal.numbers)
                self._invalidate_page(nudge.workload_topic(change.public_id))
            changed.append(refusal)
            if change.is_first_start and refusal.expected_start is not None:
                first_starts[pk] = refusal.expected_start
            self.result.reported[pk] = refusal
        if first_starts:
            start_estimates.record_first_estimates(first_starts, self.now)
        if changed:
            write_reasons(changed)
            self._invalidate_page(nudge.QUEUE)
        self.result.reasons_written = len(changed)

    def write_reservation_reasons(self) -> None:
        """Write why a reservation that has started has no units.

        Clear the reason of every other open reservation.
        """
        unbound_now = {unbound.reservation: unbound for unbound in self.plan.unbound}
        rows = Reservation.objects.filter(
            pool__in=[pool.id for pool in self.snapshot.pools],
            state__in=OPEN_RESERVATION_STATES,
        )
        for row in rows.filter(Q(pk__in=unbound_now) | ~Q(reason_code="")).order_by("pk"):
            unbound = unbound_now.get(row.pk)
            code = str(unbound.code) if unbound else ""
            numbers = json_numbers(unbound.numbers) if unbound else {}
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
        kind: Decision.DecisionKind,
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
        """Write the decisions. Update the decayed use of teams with the slots that they held in the snapshot.

        See ``update_decayed_use``.
        """
        Decision.objects.bulk_create(self.decisions, batch_size=1000)
        started = {p.workload for p in self.result.accepted if isinstance(p, Placement)}
        holders = {(q.team, q.pool) for q in self.snapshot.queued if q.id in started} if started else set()
        holders |= {(running.team, running.pool) for running in self.snapshot.running}
        half_lives = {pool.id: pool.policy.half_life_seconds for pool in self.snapshot.pools}
        update_decayed_use(half_lives, self._held, holders, self.now)

    def _held(self) -> dict[tuple[int, int], int]:
        """Return the number of slots that each pair (team, pool) held in the snapshot."""
        slots = {unit.id: unit.slots for unit in self.snapshot.units}
        held: dict[tuple[int, int], int] = defaultdict(int)
        for running in self.snapshot.running:
            held[running.team, running.pool] += sum(slots[u] for u in running.units)
        return held

    def notify_pages(self) -> None:
        """After the commit, publish each collected topic once, so that its pages are refreshed."""
        nudge.pages(*self.topics)


CLOSED_HOST_MESSAGES: dict[str, str] = {
    ReasonCode.HOST_FULL: "the disk of host {} is full",
    ReasonCode.ISOLATION_TOO_WEAK: "host {} isolates workloads less than its pool requires",
    ReasonCode.PERSON_USERS_MISSING: "host {} cannot run work as its owner",
}
EVICTABLE_STATES = (WorkloadState.PLACED, WorkloadState.STARTING, WorkloadState.RUNNING)
ALREADY_STOPPING = "it no longer runs, or is already stopping"


def _next_generations(count: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('scheduler_generation') FROM generate_series(1, %s)", [count])
        return sorted(int(row[0]) for row in cursor.fetchall())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
