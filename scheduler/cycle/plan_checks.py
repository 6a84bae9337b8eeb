"""Check that the facts behind a plan are still true. The checks run while ``apply_plan`` holds its locks.

The planning rules are in the core and are not applied a second time. Each check is about one item of the
plan: a placement, an eviction or a binding. If the facts have changed so that the item may now be wrong, the
item is rejected, and the next cycle decides about it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from scheduler.core.model.plan import Eviction, Placement, Plan, ReservationBinding
from scheduler.core.model.quota_ledger import UNLIMITED_SLOTS
from scheduler.core.model.snapshot import QueuedWorkload, QuotaInfo, RunningWorkload, Snapshot
from scheduler.core.model.snapshot import ReservationInfo as Promise
from scheduler.cycle import core_values, gate_effects, snapshot_rows
from scheduler.cycle import snapshot as reading
from scheduler.models import Pool, Reservation, Unit, Workload
from scheduler.runs.commands import LIVE_STATES
from scheduler.state.states import OPEN_RESERVATION_STATES, TERMINATING_STATES, WorkloadState


class PlanChecks:
    """The current facts about a plan's pools, for comparison with the plan's snapshot.

    ``pools``, ``units`` and ``workloads`` are rows that the caller read under its locks. Other rows are read
    in a fixed number of queries. Every check returns the problem as a text for the log, or an empty string
    if there is no problem.
    """

    def __init__(
        self,
        plan: Plan,
        snapshot: Snapshot,
        pools: Mapping[int, Pool],
        units: Mapping[int, Unit],
        workloads: Mapping[int, Workload],
        now: datetime,
    ) -> None:
        self.now, self.units, self.workloads = now, units, workloads
        self.snapshot_queued = {q.id: q for q in snapshot.queued if q.id in workloads}
        self.snapshot_running = {r.id: r for r in snapshot.running}
        self.snapshot_reservations = {r.id: r for r in snapshot.reservations}
        self.snapshot_quotas = _quotas_by_key(snapshot.quotas)
        self.snapshot_maintenance = frozenset(snapshot.maintenance)
        then = {pool.id: pool for pool in snapshot.pools}
        self.changed_pools = {
            pk for pk, pool in pools.items() if snapshot_rows.pool_from_row(pool) != then.get(pk)
        }
        self.models_of = _victim_models(plan, snapshot)
        self._read(sorted(pools))

    def _read(self, pools: list[int]) -> None:
        reader = snapshot_rows.SnapshotReader(pools, self.now)
        self.gates = gate_effects.closed_budget_gates(self.now)
        self.quotas = _quotas_by_key(reader.quotas())
        promises = reading.open_reservations(reader.promised(), reader.bound(), self.now)
        self.promises = {promise.id: promise for promise in promises}
        self.bound_units = {promise.id: set(promise.units) for promise in promises}
        self.changed_reservations = [
            p for p in promises if not _same_window(p, self.snapshot_reservations.get(p.id))
        ]
        windows = reading.open_maintenance(reader.maintenance(), self.now)
        self.announced = [window for window in windows if window not in self.snapshot_maintenance]
        self._read_holders(pools)

    def _read_holders(self, pools: list[int]) -> None:
        """Find the teams and users that hold more than the plan assumed, and the teams that hold less."""
        held = Workload.objects.filter(state__in=LIVE_STATES, pool__in=pools)
        rows = held.values_list("pk", "project__team_id", "owner_id", "state")
        staying = set()
        self.grown_teams: set[int] = set()
        self.grown_users: set[int] = set()
        for pk, team, user, state in rows:
            if pk not in self.snapshot_running:
                self.grown_teams.add(team)
                self.grown_users.add(user)
            if state not in TERMINATING_STATES:
                staying.add(pk)
        before = (r for r in self.snapshot_running.values() if not r.stopping and r.pool in pools)
        self.shrunk_teams = {running.team for running in before if running.id not in staying}

    # -- placements ---------------------------------------------------------------------------------

    def placement_problem(self, placement: Placement) -> str:
        """Return the reason why this workload may no longer start on these units, or an empty string."""
        workload = self.workloads[placement.workload]
        return (
            self._claim_problem(workload, self._models(placement.units), placement.borrowed_slots)
            or self._reservation_problem(workload, placement.units)
            or self._promised_units_problem(workload, placement)
        )

    def _claim_problem(self, workload: Workload, models: Iterable[str], borrowed_slots: int) -> str:
        """Return why the workload may no longer have units of these models, or an empty string.

        Examples: its request or the pool's rules have changed, a budget is used up, a quota was cut.
        """
        then = self.snapshot_queued.get(workload.pk)
        if then is None:
            return "it is not in the plan's snapshot"
        if workload.pool_id in self.changed_pools:
            return f"the rules of pool {workload.pool_id} have changed"
        kept = (then.pool, then.project, then.reservation, then.preemptible, then.ask)
        asks = core_values.ask_from_row(workload)
        if kept != (
            workload.pool_id,
            workload.project_id,
            workload.reservation_id,
            workload.preemptible,
            asks,
        ):
            return "its request has changed"
        if workload.max_runtime_seconds > then.max_runtime_seconds:
            return "it may run longer than was planned"
        if workload.not_before is not None and workload.not_before > self.now:
            return "it backs off after a failed attempt"
        problem = self._budget_problem(then, borrowed_slots)
        if problem:
            return problem
        if then.reservation is not None:
            return ""
        if then.user in self.grown_users or then.team in self.grown_teams:
            return "its team or its owner holds more than the plan assumed"
        return next(
            (
                why
                for model in sorted(set(models))
                if (why := self._quota_problem(then.team, then.pool, model))
            ),
            "",
        )

    def _budget_problem(self, then: QueuedWorkload, borrowed_slots: int) -> str:
        budget = gate_effects.budget_effect(self.gates, then.team, then.project)
        if budget.gate:
            return "a budget that is used up refuses new work"
        if borrowed_slots and not budget.may_borrow:
            return "a budget that is used up does not let it borrow"
        return ""

    def _quota_problem(self, team: int, pool: int, model: str) -> str:
        before, now = self.snapshot_quotas.get((team, pool, model)), self.quotas.get((team, pool, model))
        if before is None or before == now:
            return ""
        if now is None or now.guaranteed < before.guaranteed or _ceiling(now) < _ceiling(before):
            return f"the quota of team {team} for {model} was cut"
        return ""

    def _reservation_problem(self, workload: Workload, units: Iterable[int]) -> str:
        if workload.reservation_id is None:
            return ""
        promise = self.promises.get(workload.reservation_id)
        if promise is None or promise.project != workload.project_id:
            return f"reservation {workload.reservation_id} is no longer open"
        if not self.bound_units[promise.id].issuperset(units):
            return f"reservation {workload.reservation_id} no longer has these units"
        return ""

    def _promised_units_problem(self, workload: Workload, placement: Placement) -> str:
        """Return why the workload can no longer have these units until its planned end, or an empty string.

        Examples: the host has moved to another pool or has a new maintenance window, or a new reservation in
        the pool may need the units.
        """
        until = placement.until or core_values.epoch_seconds(self.now) + workload.max_runtime_seconds
        hosts = {self.units[unit].gpu.host for unit in placement.units}
        for host in sorted(hosts, key=lambda host: host.pk):
            if host.pool_id != workload.pool_id:
                return f"host {host.name} has moved to another pool"
            if any(window.host == host.pk and window.start < until for window in self.announced):
                return f"host {host.name} has a maintenance window before its end"
        if workload.preemptible or workload.reservation_id is not None:
            return ""  # it can be evicted at a reservation's start, or runs inside a reservation
        if any(p.pool == workload.pool_id and p.start < until for p in self.changed_reservations):
            return "a reservation was confirmed meanwhile that may need these units"
        return ""

    # -- evictions ----------------------------------------------------------------------------------

    def eviction_problem(self, eviction: Eviction) -> str:
        """Return why this workload should not be evicted any more, or an empty string."""
        victim, then = self.workloads.get(eviction.workload), self.snapshot_running.get(eviction.workload)
        if victim is None or then is None:
            return "it is not in the plan's snapshot"
        if not victim.preemptible:
            return "it may no longer be evicted"
        if victim.pool_id in self.changed_pools:
            return f"the rules of pool {victim.pool_id} have changed"
        if eviction.for_reservation is not None:
            return self._changed_reservation_problem(eviction.for_reservation)
        return self._beneficiary_problem(eviction.for_workload, then)

    def _changed_reservation_problem(self, pk: int) -> str:
        promise = self.promises.get(pk)
        if promise is None or not _same_window(promise, self.snapshot_reservations.get(pk)):
            return f"reservation {pk}, for which it would be evicted, has changed"
        return ""

    def _beneficiary_problem(self, pk: int | None, victim: RunningWorkload) -> str:
        beneficiary = self.workloads.get(pk or 0)
        if beneficiary is None or beneficiary.state != WorkloadState.QUEUED:
            return "the workload that needs its units is no longer queued"
        models = self.models_of.get(victim.id, ())
        # The beneficiary is not placed yet, so it borrows nothing. It may evict because of its team's
        # guarantee or its priority.
        why = self._claim_problem(beneficiary, models, 0)
        if why:
            return f"the workload that needs its units: {why}"
        if victim.team == self.snapshot_queued[beneficiary.pk].team:
            return ""
        if victim.team in self.shrunk_teams:
            return f"team {victim.team} holds less than the plan assumed: its borrowing may not be reclaimed"
        for model in models:
            before, now = (
                q.get((victim.team, victim.pool, model)) for q in (self.snapshot_quotas, self.quotas)
            )
            if (now.guaranteed if now else 0) > (before.guaranteed if before else 0):
                return f"the guarantee of team {victim.team} for {model} was raised"
        return ""

    # -- bindings of reservations -------------------------------------------------------------------

    def binding_problem(self, reservation: Reservation | None) -> str:
        """Return the reason why this reservation must not get its units now, or an empty string."""
        if (
            reservation is None
            or reservation.state not in OPEN_RESERVATION_STATES
            or reservation.end <= self.now
        ):
            return "the reservation is no longer open"
        if reservation.start > self.now:
            return "the reservation was moved to a later time"
        then = self.snapshot_reservations.get(reservation.pk)
        if (
            then is None
            or then.ask != core_values.ask_from_row(reservation)
            or then.pool != reservation.pool_id
        ):
            return "the reservation's request has changed"
        return ""

    def note_binding(self, binding: ReservationBinding) -> None:
        """Record the units that this plan has bound to a reservation.

        Work inside the reservation may then start on these units.
        """
        self.bound_units.setdefault(binding.reservation, set()).update(binding.units)

    def _models(self, units: Iterable[int]) -> set[str]:
        return {self.units[unit].gpu.model for unit in units}


def _same_window(promise: Promise, then: Promise | None) -> bool:
    if then is None:
        return False
    return (promise.start, promise.end, promise.ask, promise.pool) == (
        then.start,
        then.end,
        then.ask,
        then.pool,
    )


def _quotas_by_key(quotas: Iterable[QuotaInfo]) -> dict[tuple[int, int, str], QuotaInfo]:
    return {(quota.team, quota.pool, quota.model): quota for quota in quotas}


def _ceiling(quota: QuotaInfo) -> int:
    return UNLIMITED_SLOTS if quota.borrow_limit is None else quota.guaranteed + quota.borrow_limit


def _victim_models(plan: Plan, snapshot: Snapshot) -> dict[int, tuple[str, ...]]:
    """Return the GPU models that each victim of the plan holds, by workload id."""
    victims = {eviction.workload for eviction in plan.evictions}
    units = {r.id: frozenset(r.units) for r in snapshot.running if r.id in victims}
    wanted = frozenset().union(*units.values())
    model = {unit.id: unit.model for unit in snapshot.units if unit.id in wanted} if wanted else {}
    return {pk: tuple(sorted({model[u] for u in mine if u in model})) for pk, mine in units.items()}
