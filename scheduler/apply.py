"""The only place that commits a plan: lock, check again on fresh rows, take what still holds, turn away the rest.

A plan is a proposal about a moment that has passed. Each part is checked by itself, so that one stale placement does
not cost the others.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import F, Q

from scheduler import commands, locks, nudge
from scheduler.core.model import Binding, Eviction, Numbers, Placement, Plan, Refusal, Snapshot
from scheduler.decayed_use import bring_forward
from scheduler.models import (
    Allocation,
    BoundUnit,
    Decision,
    Leader,
    Pool,
    Reservation,
    Run,
    Unit,
    Workload,
)
from scheduler.states import (
    RepairState,
    ReservationState,
    RunState,
    WorkloadState,
    accepts_work,
    change_state,
    change_states,
)

EXPECTED_START_GRAIN_SECONDS = 60  # an estimate that moved by less is not worth a write


class StaleEpoch(Exception):
    """Another engine has taken over since this plan's snapshot: nothing of it is written."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A part of the plan that no longer held, and why, in words for the log."""

    item: Placement | Eviction | Binding
    why: str


@dataclass(slots=True)
class Applied:
    accepted: list[Placement | Eviction | Binding] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    reasons_written: int = 0


def apply(plan: Plan, snapshot: Snapshot, now: datetime) -> Applied:
    """Commit what still holds of ``plan``, in one transaction. Raises StaleEpoch when the leader's epoch is not the plan's."""
    with transaction.atomic():
        leader = locks.leader()
        if leader.epoch != plan.epoch:
            raise StaleEpoch(f"epoch {plan.epoch} is over, {leader.holder} leads with {leader.epoch}")
        applier = _Applier(plan, snapshot, now)
        applier.bind()
        applier.evict()
        applier.place()
        applier.explain()
        applier.explain_reservations()
        applier.keep_accounts()
        Leader.objects.filter(pk=leader.pk).update(last_cycle_at=now)
    return applier.done


class _Applier:
    def __init__(self, plan: Plan, snapshot: Snapshot, now: datetime) -> None:
        self.plan, self.snapshot, self.now = plan, snapshot, now
        self.done = Applied()
        self.decisions: list[Decision] = []
        acting = bool(plan.placements or plan.evictions or plan.bindings)
        self.pools = locks.pools(p.id for p in snapshot.pools) if acting else {}
        self.units = self._units()
        self.reservations = locks.reservations(b.reservation for b in plan.bindings)
        self.hosts = locks.hosts(unit.gpu.host_id for unit in self.units.values())
        for unit in self.units.values():  # as they are under the lock
            unit.gpu.host = self.hosts[unit.gpu.host_id]
        self.news = self._news()
        beneficiaries = {e.for_workload for e in plan.evictions if e.for_workload is not None}
        touched = {p.workload for p in plan.placements} | {e.workload for e in plan.evictions} | beneficiaries
        self.workloads = locks.workloads(touched.union(self.news))
        self.pool_of = {pool.id: pool for pool in snapshot.pools}

    def _units(self) -> dict[int, Unit]:
        wanted = {u for p in self.plan.placements for u in p.units} | {u for b in self.plan.bindings for u in b.units}
        return {u.pk: u for u in Unit.objects.select_related("gpu").filter(pk__in=wanted)}

    def _news(self) -> dict[int, Refusal]:
        """The refusals that say something else than the rows do. Looked at again under the lock."""
        refusals = {r.workload: r for r in self.plan.refusals}
        rows = Workload.objects.filter(pk__in=refusals, state=WorkloadState.QUEUED).only("pk", *REASON_FIELDS)
        return {row.pk: refusals[row.pk] for row in rows if _says_something_new(row, refusals[row.pk])}

    def _reject(self, item: Placement | Eviction | Binding, why: str) -> None:
        self.done.rejected.append(Rejection(item, why))

    # -- reservations that begin -----------------------------------------------------------------------------------------

    def bind(self) -> None:
        for binding in self.plan.bindings:
            why = self._bind(binding, self.reservations.get(binding.reservation))
            if why:
                self._reject(binding, why)
            else:
                self.done.accepted.append(binding)
                nudge.pages(nudge.CALENDAR)

    def _bind(self, binding: Binding, reservation: Reservation | None) -> str:
        open_states = (ReservationState.CONFIRMED, ReservationState.ACTIVE)
        if reservation is None or reservation.state not in open_states or reservation.end <= self.now:
            return "the reservation is not open any more"
        problem = self._unusable(binding.units)
        if problem:
            return problem
        period = DateTimeTZRange(self.now, reservation.end)
        try:
            with transaction.atomic():
                BoundUnit.objects.bulk_create(
                    BoundUnit(reservation=reservation, unit=self.units[u], slots=self.units[u].slots, period=period)
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
        running = {r.id: r for r in self.snapshot.running}
        for eviction in self.plan.evictions:
            workload = self.workloads.get(eviction.workload)
            if workload is None or not self._evict(eviction, workload):
                self._reject(eviction, "it does not run any more, or goes already")
                continue
            self.done.accepted.append(eviction)
            self._decide(workload, Decision.Kind.EVICTED, eviction.code, eviction.numbers, eviction)
            if eviction.for_workload is not None:
                earmarks[eviction.for_workload] |= set(running[eviction.workload].units)
        for pk, units in earmarks.items():
            beneficiary = self.workloads.get(pk)
            if beneficiary is not None and beneficiary.state == WorkloadState.QUEUED:
                beneficiary.earmarked_units = sorted(units | set(beneficiary.earmarked_units))
                beneficiary.save(update_fields=["earmarked_units"])

    def _evict(self, eviction: Eviction, workload: Workload) -> bool:
        grace = self.pool_of[workload.pool_id].policy.grace_seconds
        stop_at = datetime.fromtimestamp(eviction.stop_at, UTC)
        beneficiary = {
            "evicted_for_workload_id": eviction.for_workload,
            "evicted_for_reservation_id": eviction.for_reservation,
        }
        if workload.state == WorkloadState.RUNNING:
            return commands.give_notice(
                workload, code=eviction.code, stop_at=stop_at, grace_seconds=grace, now=self.now, **beneficiary
            )
        if workload.state in (WorkloadState.PLACED, WorkloadState.STARTING):  # has nothing to save yet
            return commands.stop(workload, code=eviction.code, grace_seconds=grace, now=self.now, **beneficiary)
        return False

    # -- work that starts ------------------------------------------------------------------------------------------------

    def place(self) -> None:
        checked = []
        for placement in self.plan.placements:
            why = self._why_not(placement)
            if why:
                self._reject(placement, why)
            else:
                checked.append(placement)
        if not checked:
            return
        try:
            with transaction.atomic():
                self._start(checked)
            self._accept(checked)
        except IntegrityError:
            # Somebody holds what looked free: find out whose placement it is, and start the others.
            for placement in checked:
                self._start_alone(placement)

    def _start_alone(self, placement: Placement) -> None:
        try:
            with transaction.atomic():
                self._start([placement])
        except IntegrityError as error:
            self._reject(placement, _first_line(error))
        else:
            self._accept([placement])

    def _why_not(self, placement: Placement) -> str:
        workload = self.workloads.get(placement.workload)
        if workload is None or workload.state != WorkloadState.QUEUED:
            return "it does not wait any more"
        return self._unusable(placement.units)

    def _unusable(self, units: Iterable[int]) -> str:
        for pk in units:
            unit = self.units.get(pk)
            if unit is None or unit.retired_at is not None or unit.gpu.retired_at is not None:
                return f"unit {pk} is gone"
            if unit.gpu.repair_state != RepairState.WELL:
                return f"GPU {unit.gpu_id} is {unit.gpu.repair_state}"
            host = unit.gpu.host
            if not accepts_work(host.lease_state, host.admin_state, host.repair_state):
                return f"host {host.name} takes no new work"
        return ""

    def _start(self, placements: Sequence[Placement]) -> None:
        """Runs, allocations and commands of these, all or none: an IntegrityError undoes them."""
        runs: list[Run] = []
        places: list[tuple[Placement, Run, list[Unit]]] = []
        generations = iter(_generations(sum(len(self._by_host(p)) for p in placements)))
        for placement in placements:
            workload = self.workloads[placement.workload]
            for rank, (host, units) in enumerate(self._by_host(placement)):
                run = Run(
                    workload=workload, attempt=workload.attempt + 1, rank=rank, host_id=host,
                    generation=next(generations), placed_at=self.now,
                )  # fmt: skip
                runs.append(run)
                places.append((placement, run, units))
        Run.objects.bulk_create(runs)
        Allocation.objects.bulk_create(self._allocations(places))

    def _by_host(self, placement: Placement) -> list[tuple[int, list[Unit]]]:
        hosts: dict[int, list[Unit]] = defaultdict(list)
        for pk in sorted(placement.units):
            hosts[self.units[pk].gpu.host_id].append(self.units[pk])
        return sorted(hosts.items())

    def _allocations(self, places: Sequence[tuple[Placement, Run, list[Unit]]]) -> list[Allocation]:
        period = DateTimeTZRange(self.now, None)
        found: list[Allocation] = []
        left = {placement.workload: placement.borrowed_slots for placement, _, _ in places}
        for placement, run, units in places:
            workload = self.workloads[placement.workload]
            for unit in units:
                borrowed = left[placement.workload] > 0
                left[placement.workload] -= unit.slots.upper - unit.slots.lower
                found.append(
                    Allocation(
                        run=run, workload=workload, project_id=workload.project_id, unit=unit, slots=unit.slots,
                        reservation_id=workload.reservation_id, period=period, borrowed=borrowed,
                    )
                )  # fmt: skip
        return found

    def _accept(self, placements: Sequence[Placement]) -> None:
        runs = Run.objects.filter(workload__in=[p.workload for p in placements], state=RunState.PLACED)
        commands.start([run for run in runs if run.placed_at == self.now], self.now)
        changed = change_states(
            [self.workloads[p.workload] for p in placements], "state", old=WorkloadState.QUEUED, new=WorkloadState.PLACED,
            attempt=F("attempt") + 1, position=None, expected_start=None, blockers=[], earmarked_units=[], not_before=None,
        )  # fmt: skip
        assert changed == len(placements), "each was queued under this transaction's lock"
        _write_starts(placements)
        for placement in placements:
            workload = self.workloads[placement.workload]
            workload.state, workload.attempt = WorkloadState.PLACED, workload.attempt + 1
            self.done.accepted.append(placement)
            self._decide(workload, Decision.Kind.PLACED, placement.code, placement.numbers)
            nudge.pages(nudge.workload_topic(workload.public_id))
        inside = {w.reservation_id for p in placements if (w := self.workloads[p.workload]).reservation_id}
        if inside:
            Reservation.objects.filter(pk__in=inside, first_used_at__isnull=True).update(first_used_at=self.now)
        nudge.pages(nudge.QUEUE)

    # -- what is said to everybody else ----------------------------------------------------------------------------------

    def explain(self) -> None:
        """Write reasons, positions and expected starts that changed; a Decision where the reason itself is another one."""
        changed = []
        for pk, refusal in sorted(self.news.items()):
            workload = self.workloads.get(pk)
            if workload is None or workload.state != WorkloadState.QUEUED:
                continue
            if workload.reason_code != refusal.code:
                self._decide(workload, Decision.Kind.REFUSED, refusal.code, refusal.numbers)
                nudge.pages(nudge.workload_topic(workload.public_id))
            changed.append(refusal)
        if changed:
            _write_reasons(changed)
            nudge.pages(nudge.QUEUE)
        self.done.reasons_written = len(changed)

    def explain_reservations(self) -> None:
        """Say why reservations that have begun have no units; take it back from those that have them, or wait no longer."""
        said = {unbound.reservation: unbound for unbound in self.plan.unbound}
        open_ = Reservation.objects.filter(
            pool__in=[pool.id for pool in self.snapshot.pools],
            state__in=(ReservationState.CONFIRMED, ReservationState.ACTIVE),
        )
        for row in open_.filter(Q(pk__in=said) | ~Q(reason_code="")).order_by("pk"):
            now_said = said.get(row.pk)
            code = str(now_said.code) if now_said else ""
            numbers = _as_stored(now_said.numbers) if now_said else {}
            if (row.reason_code, row.reason_numbers) == (code, numbers):
                continue
            since = row.reason_at if row.reason_code == code else self.now if code else None
            Reservation.objects.filter(pk=row.pk, state=row.state).update(
                reason_code=code, reason_numbers=numbers, reason_at=since
            )
            nudge.pages(nudge.CALENDAR, f"reservation:{row.public_id}")

    def _decide(
        self, workload: Workload, kind: Decision.Kind, code: str, numbers: Numbers, eviction: Eviction | None = None
    ) -> None:
        self.decisions.append(self._decision(workload, kind, code, numbers, eviction))

    def _decision(
        self, workload: Workload, kind: Decision.Kind, code: str, numbers: Numbers, eviction: Eviction | None = None
    ) -> Decision:
        return Decision(
            workload=workload, kind=kind, code=str(code), numbers=dict(numbers), epoch=self.plan.epoch, at=self.now,
            for_workload_id=eviction.for_workload if eviction else None,
            for_reservation_id=eviction.for_reservation if eviction else None,
        )  # fmt: skip

    def keep_accounts(self) -> None:
        """What was decided, and decayed use as of now from what was held since the last cycle that wrote it."""
        Decision.objects.bulk_create(self.decisions, batch_size=1000)
        slots = {unit.id: unit.slots for unit in self.snapshot.units}
        held: dict[tuple[int, int], int] = defaultdict(int)
        for running in self.snapshot.running:
            held[running.team, running.pool] += sum(slots[u] for u in running.units)
        team_of = {queued.id: queued.team for queued in self.snapshot.queued}
        for placement in self.done.accepted:
            if isinstance(placement, Placement):
                held.setdefault((team_of[placement.workload], self.workloads[placement.workload].pool_id), 0)
        bring_forward(
            {p.pk: p for p in Pool.objects.filter(pk__in=[p.id for p in self.snapshot.pools])}, held, self.now
        )


REASON_FIELDS = ["reason_code", "reason_numbers", "position", "expected_start", "blockers"]


def _says_something_new(workload: Workload, refusal: Refusal) -> bool:
    return (
        workload.reason_code != refusal.code
        or workload.reason_numbers != _as_stored(refusal.numbers)
        or workload.position != refusal.position
        or workload.blockers != list(refusal.blockers)
        or _moved(workload.expected_start, refusal.expected_start)
    )


def _moved(known: datetime | None, expected: int | None) -> bool:
    if known is None or expected is None:
        return (known is None) != (expected is None)
    return abs(known.timestamp() - expected) >= EXPECTED_START_GRAIN_SECONDS


WRITE_REASONS = """
UPDATE scheduler_workload AS workload
SET reason_code = said.reason_code, reason_numbers = said.reason_numbers, position = said.position,
    expected_start = to_timestamp(said.expected_start), blockers = said.blockers
FROM json_to_recordset(%s::json) AS said(
    id bigint, reason_code text, reason_numbers jsonb, position integer, expected_start bigint, blockers bigint[]
)
WHERE workload.id = said.id
"""


def _write_reasons(refusals: Sequence[Refusal]) -> None:
    """In one statement: a busy pool's queue changes by hundreds of rows, and one CASE per row and column takes a second."""
    rows = [
        {
            "id": refusal.workload,
            "reason_code": str(refusal.code),
            "reason_numbers": _as_stored(refusal.numbers),
            "position": refusal.position,
            "expected_start": refusal.expected_start,
            "blockers": list(refusal.blockers),
        }
        for refusal in refusals
    ]
    with connection.cursor() as cursor:
        cursor.execute(WRITE_REASONS, [json.dumps(rows, default=str)])


WRITE_STARTS = """
UPDATE scheduler_workload AS workload
SET reason_code = said.reason_code, reason_numbers = said.reason_numbers, borrowed_slots = said.borrowed_slots
FROM json_to_recordset(%s::json) AS said(id bigint, reason_code text, reason_numbers jsonb, borrowed_slots integer)
WHERE workload.id = said.id
"""


def _write_starts(placements: Sequence[Placement]) -> None:
    rows = [
        {
            "id": placement.workload,
            "reason_code": str(placement.code),
            "reason_numbers": _as_stored(placement.numbers),
            "borrowed_slots": placement.borrowed_slots,
        }
        for placement in placements
    ]
    with connection.cursor() as cursor:
        cursor.execute(WRITE_STARTS, [json.dumps(rows, default=str)])


def _as_stored(numbers: Numbers) -> dict[str, Any]:
    """As they come back from JSON: tuples are lists there."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in numbers}


def _generations(count: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('scheduler_generation') FROM generate_series(1, %s)", [count])
        return sorted(int(row[0]) for row in cursor.fetchall())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
