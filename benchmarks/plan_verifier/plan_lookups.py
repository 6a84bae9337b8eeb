"""Provide tables of one plan for the checks: slots held before and after the plan, limits, and ends of work.

A slot is 1/840 of a GPU. Times are in seconds since the epoch.

The tables need some rules of the planner, for example the time at which work releases its units. These rules
are implemented here a second time, from docs/scheduling.md, so that the checks share no code with the
planner.
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
    """Tables of one plan and of the snapshot from which it was made."""

    def __init__(self, snapshot: Snapshot, plan: Plan, now: int) -> None:
        super().__init__(snapshot, plan, now)
        self.quotas = {(q.pool, q.team, q.model): q for q in snapshot.quotas}
        self.refusals: dict[int, Refusal] = {r.workload: r for r in plan.refusals}
        self.evictions: list[Eviction] = [e for e in plan.evictions if e.workload in self.running]
        # each waiting workload that a started workload overtakes: (waiting, started, model) ``order_checks``
        # fills this list at its first use.
        self.overtaken_pairs: list[tuple[QueuedWorkload, QueuedWorkload, str]] | None = None

    @cached_property
    def awaiting_evictions(self) -> set[int]:
        """Return the ids of the workloads for which an earlier plan evicted other work."""
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
        """Return the slots that a team holds in a pool on a model, before the plan starts or evicts work.

        The sum counts running work outside reservations, and all units that are bound to the team's
        reservations. If ``non_preemptible``, preemptible work is left out.
        """
        return self._held[1 if non_preemptible else 0][key]

    @cached_property
    def held_after(self) -> Counter[TeamModel]:
        """Return the slots that each team holds after the plan has started work.

        Victims still count, because they hold their units until they stop. A workload that waits for
        evictions counts too, because the freed units are kept for it.
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
        """Return the slots that the workload takes on each model that can serve it.

        If a model has units of several sizes, the largest size counts.
        """
        rows: dict[str, int] = {}
        for kind in self.kinds_by_pool.get(queued.pool, {}):
            if serves(self.kinds_by_pool[queued.pool][kind], queued.ask):
                rows[kind[0]] = max(rows.get(kind[0], 0), self.need(queued.ask, kind))
        return rows

    def least_slots_by_model(self, ask: Ask, pool: int) -> dict[str, int]:
        """Return the fewest slots that the ask can take on each model that can serve it."""
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
        """Return the slots that a team is guaranteed at ``time``.

        A guarantee is suspended when its GPU-hours are used up. It is in force again from the next period on.
        """
        quota = self.quotas.get(key)
        if quota is not None and quota.used_up_until is not None and quota.used_up_until <= time:
            return quota.guaranteed_after_reset
        return self.guarantee(key)

    def is_static(self, pool: int) -> bool:
        return self.pools[pool].kind is PoolKind.STATIC

    def within_guarantee(self, queued: QueuedWorkload, model: str) -> bool:
        """Return True if the team's guarantee of ``model`` covers the whole workload.

        The slots that the team holds before the plan are subtracted from the guarantee first. In a static
        pool, the result is True for the owner of the pool. In a dynamic pool, it is False for work inside a
        reservation.
        """
        if self.is_static(queued.pool):
            return self.pools[queued.pool].team == queued.team
        key = (queued.pool, queued.team, model)
        if key not in self.quotas or queued.reservation is not None:
            return False
        return self.held(key) + self.slots_needed_by_model(queued).get(model, 0) <= self.guarantee(key)

    @cached_property
    def held_by_user_after(self) -> Counter[tuple[int, int]]:
        """Return the slots that each (pool, user) holds after the plan has started work.

        Victims still count.
        """
        rows: Counter[tuple[int, int]] = Counter()
        for running in self.snapshot.running:
            rows[running.pool, running.user] += self.slots(running.units)
        for placement in self.placements:
            queued = self.queued[placement.workload]
            rows[queued.pool, queued.user] += self.slots(placement.units)
        return rows

    def limits_allow(self, queued: QueuedWorkload, kind: KindTuple, stopped: Collection[int] = ()) -> bool:
        """Return True if quota and caps certainly allow a start on units of this kind.

        The workloads in ``stopped`` are treated as if they had already stopped.
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
        """Return True if the user may hold ``need`` more slots once the workloads in ``stopped`` have ended.

        Both caps are checked: the cap on one workload and the cap on one user.
        """
        policy = self.pools[queued.pool].policy
        if policy.max_slots_per_workload is not None and need > policy.max_slots_per_workload:
            return False
        released = sum(self.slots(self.units_held_by(w)) for w in stopped)
        user = self.held_by_user_after[queued.pool, queued.user] - released + need
        return policy.max_slots_per_user is None or user <= policy.max_slots_per_user

    def _quota_allows(self, queued: QueuedWorkload, kind: KindTuple, stopped: Collection[int]) -> bool:
        """Return True if the team's quota allows a start on this kind once the workloads in ``stopped`` have
        ended.
        """
        key = (queued.pool, queued.team, kind[0])
        quota = self.quotas.get(key)
        if quota is None:
            return False
        held = self.held_after[key] - sum(
            self.slots_by_model(self.units_held_by(w))[kind[0]] for w in stopped
        )
        refusal = self.refusals.get(queued.id)
        # ``held_after`` already counts the workload if it waits for evictions.
        if refusal is None or refusal.code != ReasonCode.WAITS_FOR_EVICTION:
            held += self.need(queued.ask, kind)
        if not (queued.preemptible and queued.may_borrow):
            return held <= quota.guaranteed
        return quota.borrow_limit is None or held <= quota.guaranteed + quota.borrow_limit

    def stays_until(self, running: RunningWorkload) -> int:
        """Return the time at which running work releases its units if it is evicted as soon as possible.

        Preemptible work can be evicted after the minimum runtime, and stops after notice and grace. Other
        work runs until its runtime limit. Work that is already stopping ends at its deadline.
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
        """Return the time at which running work outside reservations can release its units, by unit id.

        ``stays_until`` defines this time.
        """
        return {
            unit: self.stays_until(r)
            for r in self.snapshot.running
            if r.reservation is None
            for unit in r.units
        }

    def is_young(self, running: RunningWorkload) -> bool:
        """Return True while the minimum runtime protects the workload from eviction."""
        return self.now < running.started + self.pools[running.pool].policy.minimum_runtime_seconds

    def unbound(self, pool: int) -> list[ReservationInfo]:
        """Return the present and future reservations of a pool that have no units, even after this plan."""
        bound = set(self.bound.values())
        return [
            r
            for r in self.snapshot.reservations
            if r.pool == pool and r.end > self.now and not r.units and r.id not in bound
        ]

    @cached_property
    def pools_with_room_being_made(self) -> set[int]:
        """Return the pools in which a workload waits for evictions.

        Some free units of these pools are earmarked for that workload, and the plan does not show which.
        """
        waiting_for_eviction = (
            r.workload for r in self.plan.refusals if r.code == ReasonCode.WAITS_FOR_EVICTION
        )
        return {self.queued[w].pool for w in waiting_for_eviction if w in self.queued}

    @cached_property
    def pools_with_earmarks_given_up(self) -> set[int]:
        """Return the pools in which a workload gives up its earmarked units during this cycle.

        The planner may have refused other workloads before these units became free.
        """
        return {q.pool for q in self.snapshot.queued if q.earmarked_units and q.id in self.abandoned_earmarks}

    @cached_property
    def teams_at_their_limit(self) -> set[tuple[int, int]]:
        """Return each (pool, team) for which a workload is refused because the team is at its quota.

        The planner reserves headroom in the quota for the refused workload. Other workloads of the team may
        therefore wait although they fit.
        """
        over_quota = (
            self.queued[r.workload]
            for r in self.plan.refusals
            if r.code == ReasonCode.OVER_QUOTA and r.workload in self.queued
        )
        return {(queued.pool, queued.team) for queued in over_quota}

    @cached_property
    def held_units(self) -> set[int]:
        """Return the units that the plan holds for waiting workloads."""
        return {u for r in self.plan.refusals for u in r.held_units}
