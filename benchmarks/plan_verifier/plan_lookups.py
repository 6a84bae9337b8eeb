"""Provide lookups for the checks: slots that teams hold before and after a plan, limits, and ends of work.

A rule that the planner also needs, such as the time at which work releases its units, is implemented a second
time from docs/scheduling.md, as loops over rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import cached_property

from benchmarks.plan_verifier.unit_lookups import KindTuple, UnitLookups, serves
from scheduler.core.model.plan import Eviction, Plan, Refusal
from scheduler.core.model.snapshot import (
    Ask,
    PoolKind,
    QueuedWorkload,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
)
from scheduler.core.reasons import ReasonCode

TeamModel = tuple[int, int, str]  # pool, team, model


class PlanLookups(UnitLookups):
    """One plan and its snapshot as plain tables."""

    def __init__(self, snapshot: Snapshot, plan: Plan, now: int) -> None:
        super().__init__(snapshot, plan, now)
        self.quotas = {(q.pool, q.team, q.model): q for q in snapshot.quotas}
        self.refusals: dict[int, Refusal] = {r.workload: r for r in plan.refusals}
        self.evictions: list[Eviction] = [e for e in plan.evictions if e.workload in self.running]
        # filled by ``order_checks``
        self.overtaken_pairs: list[tuple[QueuedWorkload, QueuedWorkload, str]] | None = None

    @cached_property
    def awaiting_evictions(self) -> set[int]:
        """Return the workloads for which evictions were ordered before this plan."""
        earmarked = {q.id for q in self.snapshot.queued if q.earmarked_units}
        return earmarked | {
            r.evicted_for_workload for r in self.snapshot.running if r.stopping and r.evicted_for_workload
        }

    @cached_property
    def _held(self) -> tuple[Counter[TeamModel], Counter[TeamModel]]:
        all_work: Counter[TeamModel] = Counter()
        non_preemptible: Counter[TeamModel] = Counter()
        for running in self.snapshot.running:
            if running.reservation is None:
                for model, slots in self.slots_by_model(running.units).items():
                    all_work[running.pool, running.team, model] += slots
                    non_preemptible[running.pool, running.team, model] += 0 if running.preemptible else slots
        for unit, reservation in self.bound.items():
            row = self.reservations.get(reservation)
            if row is not None and unit in self.units:
                all_work[row.pool, row.team, self.units[unit].model] += self.units[unit].slots
                non_preemptible[row.pool, row.team, self.units[unit].model] += self.units[unit].slots
        return all_work, non_preemptible

    def held(self, key: TeamModel, non_preemptible: bool = False) -> int:
        """Return the slots that a team holds before the plan, in running work outside reservations and in
        bound reservations.

        ``non_preemptible``: count only non-preemptible work and reservations.
        """
        return self._held[1 if non_preemptible else 0][key]

    @cached_property
    def held_after(self) -> Counter[TeamModel]:
        """Return the slots that each team holds after the plan, including slots kept for workloads that wait
        for evictions.
        """
        rows = Counter(self._held[0])
        for placement in self.placements:
            queued = self.queued[placement.workload]
            if queued.reservation is None:
                for model, slots in self.slots_by_model(placement.units).items():
                    rows[queued.pool, queued.team, model] += slots
        for refusal in self.plan.refusals:
            waiting = self.queued.get(refusal.workload)
            if (
                waiting is not None
                and refusal.code == ReasonCode.WAITS_FOR_EVICTION
                and waiting.reservation is None
            ):
                for model, slots in self.slots_needed_by_model(waiting).items():
                    rows[waiting.pool, waiting.team, model] += slots
        return rows

    def slots_needed_by_model(self, queued: QueuedWorkload) -> dict[str, int]:
        """Return, for each model that serves the ask, the slots that the ask takes on units of the largest
        kind.
        """
        rows: dict[str, int] = {}
        for kind in self.kinds_by_pool.get(queued.pool, {}):
            if serves(self.kinds_by_pool[queued.pool][kind], queued.ask):
                rows[kind[0]] = max(rows.get(kind[0], 0), self.need(queued.ask, kind))
        return rows

    def least_slots_by_model(self, ask: Ask, pool: int) -> dict[str, int]:
        """Return, for each model that serves the ask, the fewest slots that the ask can take."""
        needs: dict[str, int] = {}
        for unit in self.kinds_by_pool.get(pool, {}).values():
            if serves(unit, ask):
                need = ask.total_units * unit.slots
                needs[unit.model] = min(needs.get(unit.model, need), need)
        return needs

    def guarantee(self, key: TeamModel) -> int:
        """Return the slots that a team is guaranteed in a dynamic pool."""
        quota = self.quotas.get(key)
        return 0 if quota is None else quota.guaranteed

    def guaranteed_slots_at(self, key: TeamModel, time: int) -> int:
        """Return the slots that a team is guaranteed at a future time. A guarantee whose GPU-hours are used
        up is in force again from the next period on.
        """
        quota = self.quotas.get(key)
        if quota is not None and quota.used_up_until is not None and quota.used_up_until <= time:
            return quota.guaranteed_after_reset
        return self.guarantee(key)

    def is_static(self, pool: int) -> bool:
        return self.pools[pool].kind is PoolKind.STATIC

    def within_guarantee(self, queued: QueuedWorkload, model: str) -> bool:
        """Return True if the workload on this model would be wholly within its team's guarantee before the
        plan.
        """
        if self.is_static(queued.pool):
            return self.pools[queued.pool].team == queued.team
        key = (queued.pool, queued.team, model)
        if key not in self.quotas or queued.reservation is not None:
            return False
        return self.held(key) + self.slots_needed_by_model(queued).get(model, 0) <= self.guarantee(key)

    @cached_property
    def held_by_user_after(self) -> Counter[tuple[int, int]]:
        """Return the slots by (pool, user) after the plan, before any victim has stopped."""
        rows: Counter[tuple[int, int]] = Counter()
        for running in self.snapshot.running:
            rows[running.pool, running.user] += self.slots(running.units)
        for placement in self.placements:
            queued = self.queued[placement.workload]
            rows[queued.pool, queued.user] += self.slots(placement.units)
        return rows

    def limits_allow(self, queued: QueuedWorkload, kind: KindTuple, stopped: Collection[int] = ()) -> bool:
        """Return True if quota and caps certainly allow a start on this kind after ``stopped`` work has
        stopped.
        """
        rows = {workload: self.running.get(workload) or self.queued[workload] for workload in stopped}
        of_user = [w for w, row in rows.items() if row.user == queued.user]
        if not self._caps_allow(queued, self.need(queued.ask, kind), of_user):
            return False
        if queued.reservation is not None or self.is_static(queued.pool):
            return True
        of_team = [w for w, row in rows.items() if row.team == queued.team and row.reservation is None]
        return self._quota_allows(queued, kind, of_team)

    def _caps_allow(self, queued: QueuedWorkload, need: int, stopped: Collection[int]) -> bool:
        """Return True if ``need`` slots are within the caps once the user's ``stopped`` work has ended."""
        policy = self.pools[queued.pool].policy
        if policy.max_slots_per_workload is not None and need > policy.max_slots_per_workload:
            return False
        released = sum(self.slots(self.units_held_by(w)) for w in stopped)
        user = self.held_by_user_after[queued.pool, queued.user] - released + need
        return policy.max_slots_per_user is None or user <= policy.max_slots_per_user

    def _quota_allows(self, queued: QueuedWorkload, kind: KindTuple, stopped: Collection[int]) -> bool:
        """Return True if a start on this kind is within quota once the team's ``stopped`` work has ended."""
        key = (queued.pool, queued.team, kind[0])
        quota = self.quotas.get(key)
        if quota is None:
            return False
        held = self.held_after[key] - sum(
            self.slots_by_model(self.units_held_by(w))[kind[0]] for w in stopped
        )
        refusal = self.refusals.get(queued.id)
        # ``held_after`` contains the slots of work that waits for evictions.
        if refusal is None or refusal.code != ReasonCode.WAITS_FOR_EVICTION:
            held += self.need(queued.ask, kind)
        if not (queued.preemptible and queued.may_borrow):
            return held <= quota.guaranteed
        return quota.borrow_limit is None or held <= quota.guaranteed + quota.borrow_limit

    def stays_until(self, running: RunningWorkload) -> int:
        """Return the time until which running work holds its units.

        This is its limit, or for preemptible work the earliest end by an eviction.
        """
        policy = self.pools[running.pool].policy
        if running.stopping:
            return running.stop_by if running.stop_by is not None else self.now + policy.grace_seconds
        if not running.preemptible:
            return running.until
        protected_until = running.started + policy.minimum_runtime_seconds
        return min(running.until, max(self.now, protected_until) + self.eviction_lead(running.pool))

    @cached_property
    def release_times(self) -> dict[int, int]:
        """Return the time until which running work outside reservations holds each unit."""
        return {
            unit: self.stays_until(r)
            for r in self.snapshot.running
            if r.reservation is None
            for unit in r.units
        }

    def is_young(self, running: RunningWorkload) -> bool:
        """Return True while the minimum runtime protects the workload."""
        return self.now < running.started + self.pools[running.pool].policy.minimum_runtime_seconds

    def unbound(self, pool: int) -> list[ReservationInfo]:
        """Return the reservations of a pool that have no units, even after this plan."""
        bound = set(self.bound.values())
        return [
            r
            for r in self.snapshot.reservations
            if r.pool == pool and r.end > self.now and not r.units and r.id not in bound
        ]

    @cached_property
    def pools_with_room_being_made(self) -> set[int]:
        """Return the pools with evictions in progress. A plan does not contain the free units that are
        earmarked in these pools.
        """
        waiting_for_eviction = (
            r.workload for r in self.plan.refusals if r.code == ReasonCode.WAITS_FOR_EVICTION
        )
        return {self.queued[w].pool for w in waiting_for_eviction if w in self.queued}

    @cached_property
    def pools_with_earmarks_given_up(self) -> set[int]:
        """Return the pools in which earmarked units became free during the cycle, after some workloads had
        been refused.
        """
        return {q.pool for q in self.snapshot.queued if q.earmarked_units and q.id in self.abandoned_earmarks}

    @cached_property
    def teams_at_their_limit(self) -> set[tuple[int, int]]:
        """Return each (pool, team) with work over its quota. Headroom is reserved for this work, ahead of the
        team's other work.
        """
        over_quota = (
            self.queued[r.workload]
            for r in self.plan.refusals
            if r.code == ReasonCode.OVER_QUOTA and r.workload in self.queued
        )
        return {(queued.pool, queued.team) for queued in over_quota}

    @cached_property
    def held_units(self) -> set[int]:
        """Return the units that are held for waiting workloads."""
        return {u for r in self.plan.refusals for u in r.held_units}
