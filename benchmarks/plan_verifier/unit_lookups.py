"""Provide tables of units, and decide whether a request fits on given units.

The tables list all units, and the units that are free before and after a plan. A unit is a whole GPU, a MIG
slice or a share of a GPU. An ``Ask`` is a request for units.

Some rules, such as ``serves``, are also needed by the planner. They are implemented here a second time, from
docs/scheduling.md, so that the checks share no code with the planner.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Protocol, TypeVar

from scheduler.core.model.plan import Placement, Plan
from scheduler.core.model.snapshot import Ask, Snapshot, UnitInfo
from scheduler.core.promises.promise_timeline import DISK_CLEANUP_SECONDS
from scheduler.core.reasons import ReasonCode

# The kind of a unit: (model, profile, memory in MiB, compute capability, slots). A request does not
# distinguish units of one kind.
KindTuple = tuple[str, str, int, int, int]


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
    """Return the units that serve an ask, grouped by kind and then by host."""
    rows: dict[KindTuple, dict[int, list[UnitInfo]]] = defaultdict(lambda: defaultdict(list))
    for unit in units:
        if serves(unit, ask):
            rows[kind_tuple(unit)][unit.host].append(unit)
    return rows


def _units_in_one_island(ask: Ask, units: list[UnitInfo]) -> list[UnitInfo]:
    """Return as many of one host's units as the ask needs.

    If the ask requires NVLink, all returned units are in one NVLink group.
    """
    groups = Counter(u.nvlink_group for u in units if u.nvlink_group is not None)
    if ask.nvlink:
        group = next(g for g, count in groups.items() if count >= ask.units)
        units = [u for u in units if u.nvlink_group == group]
    return units[: ask.units]


class _HasId(Protocol):
    @property
    def id(self) -> int: ...


RowT = TypeVar("RowT", bound=_HasId)


def _by_id(rows: Iterable[RowT]) -> dict[int, RowT]:
    return {row.id: row for row in rows}


class UnitLookups:
    """Tables of rows by id, and the free units of each pool before and after the plan."""

    def __init__(self, snapshot: Snapshot, plan: Plan, now: int) -> None:
        self.snapshot, self.plan, self.now = snapshot, plan, now
        self.pools = _by_id(snapshot.pools)
        self.hosts = _by_id(snapshot.hosts)
        self.units = _by_id(snapshot.units)
        self.teams = _by_id(snapshot.teams)
        self.queued = _by_id(snapshot.queued)
        self.running = _by_id(snapshot.running)
        self.reservations = _by_id(snapshot.reservations)
        self.holder = {unit: r.id for r in snapshot.running for unit in r.units}
        # Placements with an unknown workload, pool or unit are left out here. Three other checks report them:
        # ``each_workload_gets_one_answer``, ``gates_hold`` and ``a_unit_is_held_once``.
        self.placements: list[Placement] = [p for p in plan.placements if self._names_known_rows(p)]
        self.placed = {p.workload: p for p in self.placements}
        self.placed_on = {unit: p.workload for p in self.placements for unit in p.units}
        self._read_promised_units()

    def _names_known_rows(self, placement: Placement) -> bool:
        queued = self.queued.get(placement.workload)
        return queued is not None and queued.pool in self.pools and self.units.keys() >= {*placement.units}

    def _read_promised_units(self) -> None:
        self.bound = {u: r.id for r in self.snapshot.reservations if r.end > self.now for u in r.units}
        self.bound |= {u: b.reservation for b in self.plan.bindings for u in b.units}
        # Units that evictions freed for a workload stay earmarked while it waits for further evictions. The
        # workload gives up these earmarks when it starts, or when it is refused for another reason. If it
        # starts on other units, its earmarked units become free in the next cycle.
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
        """Return the maintenance windows of each host as (start, end)."""
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
        """Return True if units of the host may be promised from ``start`` on.

        They may always be promised if the host takes work now. If the disk of the host is full, they may be
        promised if the disk can be cleared before ``start``: notice, grace and ``DISK_CLEANUP_SECONDS`` must
        fit into the time until ``start``.
        """
        row = self.hosts[host]
        if row.schedulable or row.closed_code != ReasonCode.HOST_FULL:
            return row.schedulable
        return start - self.now >= self.eviction_lead(row.pool) + DISK_CLEANUP_SECONDS

    @cached_property
    def free_before_plan(self) -> dict[int, list[UnitInfo]]:
        """Return the usable units of each pool that no work holds and that are bound to no reservation.

        Units that this plan binds to a reservation are left out too.
        """
        return {
            pool: [
                u for u in units if self.is_usable(u) and u.id not in self.holder and u.id not in self.bound
            ]
            for pool, units in self.units_by_pool.items()
        }

    @cached_property
    def free_after_plan(self) -> dict[int, list[UnitInfo]]:
        """Return the units of ``free_before_plan`` that are still free after the plan, by pool.

        Units that are earmarked for a workload are left out, even if the workload gives them up in this plan.
        """
        taken = self.placed_on.keys() | self.earmark.keys() | self.abandoned_units
        return {
            pool: [u for u in units if u.id not in taken] for pool, units in self.free_before_plan.items()
        }

    @cached_property
    def kinds_by_pool(self) -> dict[int, dict[KindTuple, UnitInfo]]:
        """Return one example unit of each kind, by pool and kind."""
        return {pool: {kind_tuple(u): u for u in units} for pool, units in self.units_by_pool.items()}

    def slots(self, units: Iterable[int]) -> int:
        return sum(self.units[u].slots for u in units if u in self.units)

    def slots_by_model(self, units: Iterable[int]) -> Counter[str]:
        rows: Counter[str] = Counter()
        for unit in units:
            if unit in self.units:
                rows[self.units[unit].model] += self.units[unit].slots
        return rows

    def eviction_lead(self, pool: int) -> int:
        """Return notice plus grace (seconds): the time from the decision to evict to the stop."""
        policy = self.pools[pool].policy
        return policy.notice_seconds + policy.grace_seconds

    @cached_property
    def _cpu_and_memory_used(self) -> tuple[Counter[int], Counter[int]]:
        """Return the CPU and the memory that running and placed work uses on each host.

        The result is two tables by host: CPU in thousandths of a core, and memory in MiB.
        """
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
        """Return True if a host has enough CPU and memory for its part of the ask.

        The workloads in ``stopped`` are treated as if they had already stopped. If ``on_empty_hosts``, the
        host is treated as empty. A host whose size is unknown always has enough.
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
        """Return the units of a workload that runs or that this plan starts."""
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
        """Yield the kinds of units on which the whole ask fits, if it may use only ``units``.

        The ask fits on a kind if enough hosts each have enough units of this kind, all labels, and enough CPU
        and memory. If the ask requires NVLink, the units of each host must be in one NVLink group. The
        workloads in ``stopped`` are treated as if they had already stopped. If ``on_empty_hosts``, all hosts
        are treated as empty.
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
        """Return the ids of units that serve the whole ask on otherwise empty hosts.

        Hosts with the fewest suitable units are chosen first. Return None if the ask does not fit.
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
