"""One plan beside the snapshot it was made from, as plain tables: what the checks look things up in.

Nothing here is shared with the planner. Where a rule is needed twice (does a unit serve an ask, when is work gone) it is
written down a second time from the words of docs/scheduling.md, as loops over rows.
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

# Units that are the same to an ask: model, profile, memory, compute capability, slots.
KindTuple = tuple[str, str, int, int, int]
TeamModel = tuple[int, int, str]  # pool, team, model


def kind_tuple(unit: UnitInfo) -> KindTuple:
    return unit.model, unit.profile, unit.memory_mib, unit.compute_capability, unit.slots


def serves(unit: UnitInfo, ask: Ask) -> bool:
    """Is the unit of a kind that the ask accepts?"""
    return (
        unit.profile == ask.profile
        and (not ask.models or unit.model in ask.models)
        and unit.memory_mib >= ask.min_memory_mib
        and unit.compute_capability >= ask.min_compute_capability
    )


def _by_kind_and_host(ask: Ask, units: Iterable[UnitInfo]) -> dict[KindTuple, dict[int, list[UnitInfo]]]:
    """The units that serve an ask."""
    found: dict[KindTuple, dict[int, list[UnitInfo]]] = defaultdict(lambda: defaultdict(list))
    for unit in units:
        if serves(unit, ask):
            found[kind_tuple(unit)][unit.host].append(unit)
    return found


def _units_in_one_island(ask: Ask, units: list[UnitInfo]) -> list[UnitInfo]:
    """As many of one host's units as are asked for on it, in one NVLink group where that is asked for."""
    groups = Counter(u.nvlink_group for u in units if u.nvlink_group is not None)
    if ask.nvlink:
        group = next(g for g, count in groups.items() if count >= ask.units)
        units = [u for u in units if u.nvlink_group == group]
    return units[: ask.units]


class PlanLookups:
    """Lookups by id, and what is left of each host once the plan is carried out."""

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
        # Only what names known rows is looked at more closely; that it names unknown ones is a finding of its own.
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
        self.overtaken: list[tuple[QueuedWorkload, QueuedWorkload, str]] | None = (
            None  # worked out once, by ``order``
        )
        self._read_promised_units()

    def _read_promised_units(self) -> None:
        self.bound = {u: r.id for r in self.snapshot.reservations if r.end > self.now for u in r.units}
        self.bound |= {u: b.reservation for b in self.plan.bindings for u in b.units}
        # What was freed for a workload is its own until it starts, unless it is found that it can't and nobody leaves for it.
        # What it leaves over when it starts on other units is free again, but not looked at before the next cycle.
        self.given_up = {
            r.workload for r in self.plan.refusals if r.code != ReasonCode.WAITS_FOR_EVICTION
        } | self.placed.keys()
        self.earmark: dict[int, int] = {}
        self.given_up_units: set[int] = set()
        for queued in self.snapshot.queued:
            if queued.id in self.given_up:
                self.given_up_units |= set(queued.earmarked_units)
            else:
                self.earmark |= dict.fromkeys(queued.earmarked_units, queued.id)
        for running in self.snapshot.running:
            if running.stopping and running.evicted_for_workload in self.queued.keys() - self.placed.keys():
                self.earmark |= dict.fromkeys(running.units, running.evicted_for_workload)
        self.waited_for = {  # workloads for which others were told to go before this plan
            *(q.id for q in self.snapshot.queued if q.earmarked_units),
            *(r.evicted_for_workload for r in self.snapshot.running if r.stopping and r.evicted_for_workload),
        }

    # -- units ---------------------------------------------------------------------------------------------------------

    def pool_of(self, unit: UnitInfo) -> int:
        return self.hosts[unit.host].pool

    @cached_property
    def units_by_pool(self) -> dict[int, list[UnitInfo]]:
        found: dict[int, list[UnitInfo]] = defaultdict(list)
        for unit in self.snapshot.units:
            if unit.host in self.hosts:
                found[self.pool_of(unit)].append(unit)
        return found

    @cached_property
    def windows(self) -> dict[int, list[tuple[int, int]]]:
        """Maintenance by host: (start, end)."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for window in self.snapshot.maintenance:
            found[window.host].append((window.start, window.end))
        return found

    def under_maintenance(self, host: int, start: int, end: int) -> bool:
        return any(s < end and e > start for s, e in self.windows.get(host, ()))

    def is_usable(self, unit: UnitInfo) -> bool:
        """Well, and on a host that takes work now."""
        host = self.hosts[unit.host]
        return unit.well and host.accepts and not self.under_maintenance(host.id, self.now, self.now + 1)

    def is_open_from(self, host: int, start: int) -> bool:
        """May a promise that begins at ``start`` count on the host? It takes work now, or only its disk is full, and there is
        more than an hour, notice and grace left to empty it."""
        row = self.hosts[host]
        if row.accepts or row.closed_code != ReasonCode.HOST_FULL:
            return row.accepts
        return start - self.now >= self.lead(row.pool) + DISK_CLEANUP_SECONDS

    @cached_property
    def free_before_plan(self) -> dict[int, list[UnitInfo]]:
        """By pool: usable units that nobody holds when the plan begins, bound to no reservation."""
        return {
            pool: [
                u for u in units if self.is_usable(u) and u.id not in self.holder and u.id not in self.bound
            ]
            for pool, units in self.units_by_pool.items()
        }

    @cached_property
    def left(self) -> dict[int, list[UnitInfo]]:
        """By pool: usable units that nobody holds and nobody is promised once the plan is carried out."""
        taken = self.placed_on.keys() | self.earmark.keys() | self.given_up_units
        return {
            pool: [u for u in units if u.id not in taken] for pool, units in self.free_before_plan.items()
        }

    def slots(self, units: Iterable[int]) -> int:
        return sum(self.units[u].slots for u in units if u in self.units)

    def slots_by_model(self, units: Iterable[int]) -> Counter[str]:
        found: Counter[str] = Counter()
        for unit in units:
            if unit in self.units:
                found[self.units[unit].model] += self.units[unit].slots
        return found

    # -- does an ask fit -------------------------------------------------------------------------------------------------

    @cached_property
    def _cpu_and_memory_used(self) -> tuple[Counter[int], Counter[int]]:
        """CPU and memory in use by host, running and placed."""
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

    def _has_beside(self, ask: Ask, host: int, gone: Collection[int], whole: bool) -> bool:
        """CPU and memory for one part of an ask, once ``gone`` are gone; ``whole``: on a host that is otherwise empty."""
        cpu, memory = (0, 0) if whole else (self.cpu_used(host), self.memory_used(host))
        for workload in () if whole else gone:
            if any(self.units[u].host == host for u in self.units_held_by(workload) if u in self.units):
                beside = self._beside_of(workload)
                cpu, memory = cpu - beside[0], memory - beside[1]
        row = self.hosts[host]
        enough_cpu = not ask.cpu_milli or not row.cpu_milli or cpu + ask.cpu_milli <= row.cpu_milli
        enough_memory = not ask.memory_mib or not row.memory_mib or memory + ask.memory_mib <= row.memory_mib
        return enough_cpu and enough_memory

    def units_held_by(self, workload: int) -> tuple[int, ...]:
        """Of running work, or of work this plan starts."""
        if workload in self.running:
            return self.running[workload].units
        return self.placed[workload].units if workload in self.placed else ()

    def _beside_of(self, workload: int) -> tuple[int, int]:
        if workload in self.running:
            return self.running[workload].cpu_milli, self.running[workload].memory_mib
        ask = self.queued[workload].ask
        return ask.cpu_milli, ask.memory_mib

    def kinds_that_fit(
        self, ask: Ask, units: Iterable[UnitInfo], gone: Collection[int] = (), whole: bool = False
    ) -> Iterator[KindTuple]:
        """The kinds of which these units would serve the whole ask: on enough hosts, each with enough of one kind, in one
        NVLink group where that is asked for, with every label, and with the CPU and memory left once ``gone`` are gone."""
        for kind, by_host in _by_kind_and_host(ask, units).items():
            hosts = (h for h, mine in by_host.items() if self._host_serves(ask, h, mine, gone, whole))
            if sum(1 for _ in hosts) >= ask.hosts:
                yield kind

    def some_units_that_fit(self, ask: Ask, units: Iterable[UnitInfo]) -> set[int] | None:
        """Units, of these, that would serve the whole ask on otherwise empty hosts, those with fewest first; or None."""
        for by_host in _by_kind_and_host(ask, units).values():
            hosts = [h for h, mine in by_host.items() if self._host_serves(ask, h, mine, (), whole=True)]
            if len(hosts) >= ask.hosts:
                hosts.sort(key=lambda h: (len(by_host[h]), h))
                return {u.id for h in hosts[: ask.hosts] for u in _units_in_one_island(ask, by_host[h])}
        return None

    def _host_serves(
        self, ask: Ask, host: int, units: list[UnitInfo], gone: Collection[int], whole: bool
    ) -> bool:
        if len(units) < ask.units or not ask.labels <= self.hosts[host].labels:
            return False
        if ask.nvlink:
            groups = Counter(u.nvlink_group for u in units if u.nvlink_group is not None)
            if max(groups.values(), default=0) < ask.units:
                return False
        return self._has_beside(ask, host, gone, whole)

    def fits(
        self, ask: Ask, units: Iterable[UnitInfo], gone: Collection[int] = (), whole: bool = False
    ) -> bool:
        return next(self.kinds_that_fit(ask, units, gone, whole), None) is not None

    def need(self, ask: Ask, kind: KindTuple) -> int:
        return ask.total_units * kind[4]

    # -- what teams hold ---------------------------------------------------------------------------------------------------

    @cached_property
    def _held(self) -> tuple[Counter[TeamModel], Counter[TeamModel]]:
        every: Counter[TeamModel] = Counter()
        firm: Counter[TeamModel] = Counter()
        for running in self.snapshot.running:
            if running.reservation is None:
                for model, slots in self.slots_by_model(running.units).items():
                    every[running.pool, running.team, model] += slots
                    firm[running.pool, running.team, model] += 0 if running.preemptible else slots
        for unit, reservation in self.bound.items():
            row = self.reservations.get(reservation)
            if row is not None and unit in self.units:
                every[row.pool, row.team, self.units[unit].model] += self.units[unit].slots
                firm[row.pool, row.team, self.units[unit].model] += self.units[unit].slots
        return every, firm

    def held(self, key: TeamModel, firm: bool = False) -> int:
        """Slots a team holds when the plan begins: running work outside reservations (``firm``: only what may not be
        evicted), and reservations that have their units."""
        return self._held[1 if firm else 0][key]

    @cached_property
    def held_after(self) -> Counter[TeamModel]:
        """The same once the plan is carried out, with what is kept for those that others make room for."""
        found = Counter(self._held[0])
        for placement in self.placements:
            queued = self.queued[placement.workload]
            if queued.reservation is None:
                for model, slots in self.slots_by_model(placement.units).items():
                    found[queued.pool, queued.team, model] += slots
        for refusal in self.plan.refusals:
            waiting = self.queued.get(refusal.workload)
            if (
                waiting is not None
                and refusal.code == ReasonCode.WAITS_FOR_EVICTION
                and waiting.reservation is None
            ):
                for model, slots in self.most_needed(waiting).items():
                    found[waiting.pool, waiting.team, model] += slots
        return found

    def most_needed(self, queued: QueuedWorkload) -> dict[str, int]:
        """By model that would serve it: the slots the ask takes of it, of the largest kind."""
        found: dict[str, int] = {}
        for kind in self.kinds_by_pool.get(queued.pool, {}):
            if serves(self.kinds_by_pool[queued.pool][kind], queued.ask):
                found[kind[0]] = max(found.get(kind[0], 0), self.need(queued.ask, kind))
        return found

    @cached_property
    def kinds_by_pool(self) -> dict[int, dict[KindTuple, UnitInfo]]:
        """By pool: every kind there is, with one unit of it."""
        return {pool: {kind_tuple(u): u for u in units} for pool, units in self.units_by_pool.items()}

    def guarantee(self, key: TeamModel) -> int:
        """Slots a team may always have in a dynamic pool."""
        quota = self.quotas.get(key)
        return 0 if quota is None else quota.guaranteed

    def guarantee_at(self, key: TeamModel, moment: int) -> int:
        """The same at a time to come: what was suspended since its GPU-hours are used up returns with the next period."""
        quota = self.quotas.get(key)
        if quota is not None and quota.used_up_until is not None and quota.used_up_until <= moment:
            return quota.guaranteed_again
        return self.guarantee(key)

    def is_static(self, pool: int) -> bool:
        return self.pools[pool].kind is PoolKind.STATIC

    def within_guarantee(self, queued: QueuedWorkload, model: str) -> bool:
        """Would the workload, on this model, be wholly within what its team is guaranteed when the plan begins?"""
        if self.is_static(queued.pool):
            return self.pools[queued.pool].team == queued.team
        key = (queued.pool, queued.team, model)
        if key not in self.quotas or queued.reservation is not None:
            return False
        return self.held(key) + self.most_needed(queued).get(model, 0) <= self.guarantee(key)

    @cached_property
    def held_by_user_after(self) -> Counter[tuple[int, int]]:
        """Slots by (pool, user) once the plan is carried out and before anybody is gone."""
        found: Counter[tuple[int, int]] = Counter()
        for running in self.snapshot.running:
            found[running.pool, running.user] += self.slots(running.units)
        for placement in self.placements:
            queued = self.queued[placement.workload]
            found[queued.pool, queued.user] += self.slots(placement.units)
        return found

    def limits_allow(self, queued: QueuedWorkload, kind: KindTuple, gone: Collection[int] = ()) -> bool:
        """Would quota and caps let it start on this kind for certain, when the plan is carried out and ``gone`` are gone?"""
        need, policy = self.need(queued.ask, kind), self.pools[queued.pool].policy
        if policy.most_slots_per_workload is not None and need > policy.most_slots_per_workload:
            return False
        rows = {workload: self.running.get(workload) or self.queued[workload] for workload in gone}
        theirs = sum(self.slots(self.units_held_by(w)) for w, row in rows.items() if row.user == queued.user)
        user = self.held_by_user_after[queued.pool, queued.user] - theirs + need
        if policy.most_slots_per_user is not None and user > policy.most_slots_per_user:
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
            held += need  # what others make room for is counted already
        if not (queued.preemptible and queued.may_borrow):
            return held <= quota.guaranteed
        return quota.borrow_limit is None or held <= quota.guaranteed + quota.borrow_limit

    # -- time --------------------------------------------------------------------------------------------------------------

    def lead(self, pool: int) -> int:
        """Notice and grace: how long before it has to be gone work is told so."""
        policy = self.pools[pool].policy
        return policy.notice_seconds + policy.grace_seconds

    def stays_until(self, running: RunningWorkload) -> int:
        """Until when its units can't be had: its limit, or for preemptible work the soonest it could be gone."""
        policy = self.pools[running.pool].policy
        if running.stopping:
            return running.stop_by if running.stop_by is not None else self.now + policy.grace_seconds
        if not running.preemptible:
            return running.until
        youth = running.started + policy.minimum_runtime_seconds
        return min(running.until, max(self.now, youth) + self.lead(running.pool))

    def is_young(self, running: RunningWorkload) -> bool:
        return self.now < running.started + self.pools[running.pool].policy.minimum_runtime_seconds

    def unbound(self, pool: int) -> list[ReservationInfo]:
        """Reservations of a pool that have no units yet, also after this plan."""
        bound = set(self.bound.values())
        return [
            r
            for r in self.snapshot.reservations
            if r.pool == pool and r.end > self.now and not r.units and r.id not in bound
        ]

    # -- which pools are simple enough to say something for certain --------------------------------------------------------

    @cached_property
    def pools_with_room_being_made(self) -> set[int]:
        """Units are kept there for somebody, and a plan does not name those that were free already."""
        waits = (r.workload for r in self.plan.refusals if r.code == ReasonCode.WAITS_FOR_EVICTION)
        return {self.queued[w].pool for w in waits if w in self.queued}

    @cached_property
    def pools_with_earmarks_given_up(self) -> set[int]:
        """Units came back there in the middle of the cycle, after some had been turned away."""
        return {q.pool for q in self.snapshot.queued if q.earmarked_units and q.id in self.given_up}

    @cached_property
    def teams_at_their_limit(self) -> set[tuple[int, int]]:
        """(pool, team) of which some work is over its quota: the room it waits for is kept from the team's other work."""
        over = (
            self.queued[r.workload]
            for r in self.plan.refusals
            if r.code == ReasonCode.OVER_QUOTA and r.workload in self.queued
        )
        return {(queued.pool, queued.team) for queued in over}

    @cached_property
    def set_aside(self) -> set[int]:
        """Units set aside for those first in line."""
        return {u for r in self.plan.refusals for u in r.held_units}
