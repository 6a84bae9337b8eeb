"""Lookups for the checks: one plan and its snapshot as plain tables.

Nothing is shared with the planner. A rule that both need (does a unit serve an ask, when is work gone) is
written a second time, from docs/scheduling.md, as loops over rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from scheduler.core.model.plan import Eviction, Placement, Plan, Refusal
from scheduler.core.model.snapshot import (
    Ask,
    PoolKind,
    QueuedWorkload,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
    UnitInfo,
)
from scheduler.core.promises.promise_timeline import DISK_CLEANUP_SECONDS
from scheduler.core.reasons import ReasonCode

# Units that are equivalent to an ask: model, profile, memory, compute capability, slots.
KindTuple = tuple[str, str, int, int, int]
TeamModel = tuple[int, int, str]  # pool, team, model


def kind_tuple(unit: UnitInfo) -> KindTuple:
    """Return the kind of a unit."""
    return unit.model, unit.profile, unit.memory_mib, unit.compute_capability, unit.slots


def serves(unit: UnitInfo, ask: Ask) -> bool:
    """Return True if the unit is of a kind that the ask accepts."""
    return (
        unit.profile == ask.profile
        and (not ask.models or unit.model in ask.models)
        and unit.memory_mib >= ask.min_memory_mib
        and unit.compute_capability >= ask.min_compute_capability
    )


def _by_kind_and_host(ask: Ask, units: Iterable[UnitInfo]) -> dict[KindTuple, dict[int, list[UnitInfo]]]:
    """Return the units that serve an ask, by kind and host."""
    rows: dict[KindTuple, dict[int, list[UnitInfo]]] = defaultdict(lambda: defaultdict(list))
    for unit in units:
        if serves(unit, ask):
            rows[kind_tuple(unit)][unit.host].append(unit)
    return rows


def _units_in_one_island(ask: Ask, units: list[UnitInfo]) -> list[UnitInfo]:
    """Return as many of one host's units as the ask needs, in one NVLink group if it asks for that."""
    groups = Counter(u.nvlink_group for u in units if u.nvlink_group is not None)
    if ask.nvlink:
        group = next(g for g, count in groups.items() if count >= ask.units)
        units = [u for u in units if u.nvlink_group == group]
    return units[: ask.units]


class PlanLookups:
    """Lookups by id, and the free capacity of each host after the plan."""

    def __init__(self, snapshot: Snapshot, plan: Plan, now: int) -> None:
        self.snapshot, self.plan, self.now = snapshot, plan, now
        self.pools = {p.id: p for p in snapshot.pools}
        self.hosts = {h.id: h for h in snapshot.hosts}
        self.units = {u.id: u for u in snapshot.units}
        self.teams = {t.id: t for t in snapshot.teams}
        self.queued = {q.id: q for q in snapshot.queued}
        self.running = {r.id: r for r in snapshot.running}
        self.reservations = {r.id: r for r in snapshot.reservations}
        self.quotas = {(q.pool, q.team, q.model): q for q in snapshot.quotas}
        self.holder = {unit: r.id for r in snapshot.running for unit in r.units}
        self.refusals: dict[int, Refusal] = {r.workload: r for r in plan.refusals}
        # Only placements of known rows are checked further. Unknown rows are a violation of their own.
        self.placements: list[Placement] = [
            p
            for p in plan.placements
            if p.workload in self.queued
            and self.queued[p.workload].pool in self.pools
            and all(u in self.units for u in p.units)
        ]
        self.placed = {p.workload: p for p in self.placements}
        self.placed_on = {unit: p.workload for p in self.placements for unit in p.units}
        self.evictions: list[Eviction] = [e for e in plan.evictions if e.workload in self.running]
        # filled by ``order_checks``
        self.overtaken_pairs: list[tuple[QueuedWorkload, QueuedWorkload, str]] | None = None
        self._read_promised_units()

    def _read_promised_units(self) -> None:
        self.bound = {u: r.id for r in self.snapshot.reservations if r.end > self.now for u in r.units}
        self.bound |= {u: b.reservation for b in self.plan.bindings for u in b.units}
        # Units freed for a workload stay earmarked until it starts, or until it cannot start and no eviction
        # for it is in progress. Units that it does not use when it starts are free again, but only from the
        # next cycle on.
        self.abandoned_earmarks = {
            r.workload for r in self.plan.refusals if r.code != ReasonCode.WAITS_FOR_EVICTION
        } | self.placed.keys()
        self.earmark: dict[int, int] = {}
        self.abandoned_units: set[int] = set()
        for queued in self.snapshot.queued:
            if queued.id in self.abandoned_earmarks:
                self.abandoned_units |= set(queued.earmarked_units)
            else:
                self.earmark |= dict.fromkeys(queued.earmarked_units, queued.id)
        for running in self.snapshot.running:
            if running.stopping and running.evicted_for_workload in self.queued.keys() - self.placed.keys():
                self.earmark |= dict.fromkeys(running.units, running.evicted_for_workload)
        self.awaiting_evictions = {  # workloads for which evictions were ordered before this plan
            *(q.id for q in self.snapshot.queued if q.earmarked_units),
            *(r.evicted_for_workload for r in self.snapshot.running if r.stopping and r.evicted_for_workload),
        }

    # -- units --------------------

    def pool_of(self, unit: UnitInfo) -> int:
        return self.hosts[unit.host].pool

    @cached_property
    def units_by_pool(self) -> dict[int, list[UnitInfo]]:
        rows: dict[int, list[UnitInfo]] = defaultdict(list)
        for unit in self.snapshot.units:
            if unit.host in self.hosts:
                rows[self.pool_of(unit)].append(unit)
        return rows

    @cached_property
    def windows(self) -> dict[int, list[tuple[int, int]]]:
        """Return the maintenance windows of each host: (start, end)."""
        rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for window in self.snapshot.maintenance:
            rows[window.host].append((window.start, window.end))
        return rows

    def under_maintenance(self, host: int, start: int, end: int) -> bool:
        return any(s < end and e > start for s, e in self.windows.get(host, ()))

    def is_usable(self, unit: UnitInfo) -> bool:
        """Return True if the unit is healthy and its host takes work now."""
        host = self.hosts[unit.host]
        return (
            unit.healthy and host.schedulable and not self.under_maintenance(host.id, self.now, self.now + 1)
        )

    def is_open_from(self, host: int, start: int) -> bool:
        """Return True if a promise from ``start`` on may count on the host.

        It takes work now, or only its disk is full and more than an hour, notice and grace are left to clear
        it.
        """
        row = self.hosts[host]
        if row.schedulable or row.closed_code != ReasonCode.HOST_FULL:
            return row.schedulable
        return start - self.now >= self.eviction_lead(row.pool) + DISK_CLEANUP_SECONDS

    @cached_property
    def free_before_plan(self) -> dict[int, list[UnitInfo]]:
        """Return, by pool, the usable units that no workload holds before the plan, and that are not
        bound.
        """
        return {
            pool: [
                u for u in units if self.is_usable(u) and u.id not in self.holder and u.id not in self.bound
            ]
            for pool, units in self.units_by_pool.items()
        }

    @cached_property
    def free_after_plan(self) -> dict[int, list[UnitInfo]]:
        """Return, by pool, the usable units that are neither held nor earmarked after the plan."""
        taken = self.placed_on.keys() | self.earmark.keys() | self.abandoned_units
        return {
            pool: [u for u in units if u.id not in taken] for pool, units in self.free_before_plan.items()
        }

    def slots(self, units: Iterable[int]) -> int:
        return sum(self.units[u].slots for u in units if u in self.units)

    def slots_by_model(self, units: Iterable[int]) -> Counter[str]:
        rows: Counter[str] = Counter()
        for unit in units:
            if unit in self.units:
                rows[self.units[unit].model] += self.units[unit].slots
        return rows

    # -- whether an ask fits --------------------
    # ------------------------------------------------------------------------------------

    @cached_property
    def _cpu_and_memory_used(self) -> tuple[Counter[int], Counter[int]]:
        """Return the CPU and memory in use by host, by running and placed work."""
        cpu: Counter[int] = Counter()
        memory: Counter[int] = Counter()
        rows = [(r.units, r.cpu_milli, r.memory_mib) for r in self.snapshot.running]
        for placement in self.placements:
            ask = self.queued[placement.workload].ask
            rows.append((placement.units, ask.cpu_milli, ask.memory_mib))
        for units, cpu_milli, memory_mib in rows:
            for host in {self.units[u].host for u in units if u in self.units}:
                cpu[host] += cpu_milli
                memory[host] += memory_mib
        return cpu, memory

    def cpu_used(self, host: int) -> int:
        return self._cpu_and_memory_used[0][host]

    def memory_used(self, host: int) -> int:
        return self._cpu_and_memory_used[1][host]

    def _has_cpu_and_memory(
        self, ask: Ask, host: int, stopped: Collection[int], on_empty_hosts: bool
    ) -> bool:
        """Return True if a host has CPU and memory for one part of an ask once ``stopped`` work has
        stopped.

        ``on_empty_hosts``: as if the host was empty.
        """
        cpu, memory = (0, 0) if on_empty_hosts else (self.cpu_used(host), self.memory_used(host))
        for workload in () if on_empty_hosts else stopped:
            if any(self.units[u].host == host for u in self.units_held_by(workload) if u in self.units):
                resources = self._cpu_and_memory_of(workload)
                cpu, memory = cpu - resources[0], memory - resources[1]
        row = self.hosts[host]
        enough_cpu = not ask.cpu_milli or not row.cpu_milli or cpu + ask.cpu_milli <= row.cpu_milli
        enough_memory = not ask.memory_mib or not row.memory_mib or memory + ask.memory_mib <= row.memory_mib
        return enough_cpu and enough_memory

    def units_held_by(self, workload: int) -> tuple[int, ...]:
        """Return the units of running work, or of work that this plan starts."""
        if workload in self.running:
            return self.running[workload].units
        return self.placed[workload].units if workload in self.placed else ()

    def _cpu_and_memory_of(self, workload: int) -> tuple[int, int]:
        if workload in self.running:
            return self.running[workload].cpu_milli, self.running[workload].memory_mib
        ask = self.queued[workload].ask
        return ask.cpu_milli, ask.memory_mib

    def kinds_that_fit(
        self, ask: Ask, units: Iterable[UnitInfo], stopped: Collection[int] = (), on_empty_hosts: bool = False
    ) -> Iterator[KindTuple]:
        """Yield the kinds of which these units serve the whole ask once ``stopped`` work has stopped.

        There have to be enough hosts, each with enough units of one kind (in one NVLink group if asked for),
        every label, CPU and memory.
        """
        for kind, by_host in _by_kind_and_host(ask, units).items():
            hosts = (
                h
                for h, host_units in by_host.items()
                if self._host_serves(ask, h, host_units, stopped, on_empty_hosts)
            )
            if sum(1 for _ in hosts) >= ask.hosts:
                yield kind

    def some_units_that_fit(self, ask: Ask, units: Iterable[UnitInfo]) -> set[int] | None:
        """Return units that serve the whole ask on otherwise empty hosts, hosts with fewest units first;
        or None.
        """
        for by_host in _by_kind_and_host(ask, units).values():
            hosts = [
                h
                for h, host_units in by_host.items()
                if self._host_serves(ask, h, host_units, (), on_empty_hosts=True)
            ]
            if len(hosts) >= ask.hosts:
                hosts.sort(key=lambda h: (len(by_host[h]), h))
                return {u.id for h in hosts[: ask.hosts] for u in _units_in_one_island(ask, by_host[h])}
        return None

    def _host_serves(
        self, ask: Ask, host: int, units: list[UnitInfo], stopped: Collection[int], on_empty_hosts: bool
    ) -> bool:
        if len(units) < ask.units or not ask.labels <= self.hosts[host].labels:
            return False
        if ask.nvlink:
            groups = Counter(u.nvlink_group for u in units if u.nvlink_group is not None)
            if max(groups.values(), default=0) < ask.units:
                return False
        return self._has_cpu_and_memory(ask, host, stopped, on_empty_hosts)

    def fits(
        self, ask: Ask, units: Iterable[UnitInfo], stopped: Collection[int] = (), on_empty_hosts: bool = False
    ) -> bool:
        return next(self.kinds_that_fit(ask, units, stopped, on_empty_hosts), None) is not None

    def need(self, ask: Ask, kind: KindTuple) -> int:
        return ask.total_units * kind[4]

    # -- what teams hold --------------------
    # ----------------------------------------------------------------------------------------

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
        """Return the slots that a team holds before the plan: running work outside reservations, and bound
        reservations.

        ``non_preemptible``: only work that may not be evicted, and reservations.
        """
        return self._held[1 if non_preemptible else 0][key]

    @cached_property
    def held_after(self) -> Counter[TeamModel]:
        """Return the same after the plan, with what is kept for workloads that wait for evictions."""
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
        """Return, for each model that serves the ask, the slots it takes of the largest kind."""
        rows: dict[str, int] = {}
        for kind in self.kinds_by_pool.get(queued.pool, {}):
            if serves(self.kinds_by_pool[queued.pool][kind], queued.ask):
                rows[kind[0]] = max(rows.get(kind[0], 0), self.need(queued.ask, kind))
        return rows

    @cached_property
    def kinds_by_pool(self) -> dict[int, dict[KindTuple, UnitInfo]]:
        """Return, by pool, every kind and one unit of it."""
        return {pool: {kind_tuple(u): u for u in units} for pool, units in self.units_by_pool.items()}

    def guarantee(self, key: TeamModel) -> int:
        """Return the slots that a team is guaranteed in a dynamic pool."""
        quota = self.quotas.get(key)
        return 0 if quota is None else quota.guaranteed

    def guaranteed_slots_at(self, key: TeamModel, time: int) -> int:
        """Return the same at a future time: a guarantee whose GPU-hours are used up returns with the next
        period.
        """
        quota = self.quotas.get(key)
        if quota is not None and quota.used_up_until is not None and quota.used_up_until <= time:
            return quota.guaranteed_after_reset
        return self.guarantee(key)

    def is_static(self, pool: int) -> bool:
        return self.pools[pool].kind is PoolKind.STATIC

    def within_guarantee(self, queued: QueuedWorkload, model: str) -> bool:
        """Return True if the workload, on this model, is wholly within its team's guarantee before the
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
        """Return True if quota and caps certainly allow a start on this kind, once ``stopped`` work has
        stopped.
        """
        need, policy = self.need(queued.ask, kind), self.pools[queued.pool].policy
        if policy.max_slots_per_workload is not None and need > policy.max_slots_per_workload:
            return False
        rows = {workload: self.running.get(workload) or self.queued[workload] for workload in stopped}
        released = sum(
            self.slots(self.units_held_by(w)) for w, row in rows.items() if row.user == queued.user
        )
        user = self.held_by_user_after[queued.pool, queued.user] - released + need
        if policy.max_slots_per_user is not None and user > policy.max_slots_per_user:
            return False
        if queued.reservation is not None or self.is_static(queued.pool):
            return True
        key = (queued.pool, queued.team, kind[0])
        quota = self.quotas.get(key)
        if quota is None:
            return False
        own = [w for w, row in rows.items() if row.team == queued.team and row.reservation is None]
        held = self.held_after[key] - sum(self.slots_by_model(self.units_held_by(w))[kind[0]] for w in own)
        refusal = self.refusals.get(queued.id)
        if refusal is None or refusal.code != ReasonCode.WAITS_FOR_EVICTION:
            held += need  # evictions for it are in progress: its slots are counted already
        if not (queued.preemptible and queued.may_borrow):
            return held <= quota.guaranteed
        return quota.borrow_limit is None or held <= quota.guaranteed + quota.borrow_limit

    # -- time --------------------
    # ---------------------------------------------------------------------------------------------------

    def eviction_lead(self, pool: int) -> int:
        """Return notice plus grace (seconds): how long before its stop work is evicted."""
        policy = self.pools[pool].policy
        return policy.notice_seconds + policy.grace_seconds

    def stays_until(self, running: RunningWorkload) -> int:
        """Return until when its units are not available: its limit, or for preemptible work the earliest
        end by eviction.
        """
        policy = self.pools[running.pool].policy
        if running.stopping:
            return running.stop_by if running.stop_by is not None else self.now + policy.grace_seconds
        if not running.preemptible:
            return running.until
        protected_until = running.started + policy.minimum_runtime_seconds
        return min(running.until, max(self.now, protected_until) + self.eviction_lead(running.pool))

    def is_young(self, running: RunningWorkload) -> bool:
        """Return True while the minimum runtime protects the workload."""
        return self.now < running.started + self.pools[running.pool].policy.minimum_runtime_seconds

    def unbound(self, pool: int) -> list[ReservationInfo]:
        """Return the reservations of a pool that have no units yet, also after this plan."""
        bound = set(self.bound.values())
        return [
            r
            for r in self.snapshot.reservations
            if r.pool == pool and r.end > self.now and not r.units and r.id not in bound
        ]

    # -- cases in which a check cannot be certain --------------------
    # ---------------------------------------------------------------

    @cached_property
    def pools_with_room_being_made(self) -> set[int]:
        """Return pools with evictions in progress: the plan does not name the free units that are
        earmarked there.
        """
        waiting_for_eviction = (
            r.workload for r in self.plan.refusals if r.code == ReasonCode.WAITS_FOR_EVICTION
        )
        return {self.queued[w].pool for w in waiting_for_eviction if w in self.queued}

    @cached_property
    def pools_with_earmarks_given_up(self) -> set[int]:
        """Return pools in which earmarked units became free during the cycle, after some workloads had
        been refused.
        """
        return {q.pool for q in self.snapshot.queued if q.earmarked_units and q.id in self.abandoned_earmarks}

    @cached_property
    def teams_at_their_limit(self) -> set[tuple[int, int]]:
        """Return (pool, team) with work over its quota: headroom is reserved for it, ahead of the team's
        other work.
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
