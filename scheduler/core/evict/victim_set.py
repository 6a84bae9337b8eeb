"""Collect a set of victims (running workloads to evict), and compute the resources that they free.

A team's guarantee is the number of slots that it can always have. Slots above it are borrowed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from scheduler.core.arrays import Ints
from scheduler.core.evict.candidates import EvictionCandidates, ObtainableUnits
from scheduler.core.fit import unit_selection


class VictimSet:
    """A set of victims for one waiting workload.

    It knows the units, CPU and memory that each host would have free after the victims have stopped. It also
    knows the slots that each other team would lose.
    """

    def __init__(
        self, obtainable: ObtainableUnits, candidates: EvictionCandidates, may_cross_guarantee: bool
    ) -> None:
        self.obtainable, self.state, self.ask = obtainable, obtainable.state, obtainable.ask
        self.candidates, self.may_cross_guarantee = candidates, may_cross_guarantee
        self.team = obtainable.queued.team
        self.victims: list[int] = []
        self.members: set[int] = set()
        # By team, except the workload's own team: the slots of each of its victims.
        self.slots_taken: dict[int, list[int]] = defaultdict(list)
        self.free_units: Ints = obtainable.counts.copy()
        self.cpu, self.memory = self.state.cpu_free.copy(), self.state.memory_free.copy()
        self.labels = self.state.label_mask(self.ask.labels)
        self.reclaimable: dict[int, int] = {}
        self.units_freed_cache: dict[int, list[tuple[int, int]]] = {}  # by victim: see ``units_freed_by``

    def add(self, victims: Sequence[int]) -> list[int]:
        """Add victims. Return their hosts."""
        hosts: dict[int, None] = {}
        for victim in victims:
            self.victims.append(victim)
            self.members.add(victim)
            if self.state.running[victim].team != self.team:
                self.slots_taken[self.state.running[victim].team].append(self.candidates.slots[victim])
            hosts |= dict.fromkeys(self._free(victim, 1))
        return list(hosts)

    def remove(self, victim: int) -> None:
        """Remove one victim."""
        self.victims.remove(victim)
        self.members.discard(victim)
        if self.state.running[victim].team != self.team:
            self.slots_taken[self.state.running[victim].team].remove(self.candidates.slots[victim])
        self._free(victim, -1)

    def _free(self, victim: int, sign: int) -> list[int]:
        running = self.state.running[victim]
        for host, units in self.units_freed_by(victim):
            self.free_units[host] += sign * units
            self.cpu[host] += sign * running.cpu_milli
            self.memory[host] += sign * running.memory_mib
        return [host for host, _ in self.units_freed_by(victim)]

    def units_freed_by(self, victim: int) -> list[tuple[int, int]]:
        """Return (host, units) for every host of a victim.

        The units are the number of units that the victim frees there and that the waiting workload can use.
        """
        cached = self.units_freed_cache.get(victim)
        if cached is None:
            hardware, units = self.state.hardware, self.state.units_of[victim]
            count = dict.fromkeys((hardware.host_list[u] for u in units), 0)
            for unit in units:
                if hardware.kind_list[unit] == self.obtainable.kind and self.obtainable.units[unit]:
                    count[hardware.host_list[unit]] += 1
            cached = self.units_freed_cache[victim] = sorted(count.items())
        return cached

    # -- queries
    # -------------------------------------------------------------------------------------------------

    def over_guarantee(self, victim: int, extra_victims: Sequence[int]) -> int:
        """Return the guaranteed slots that the victim's team would lose by the eviction of this victim.

        The victims of the set and ``extra_victims`` are assumed to be evicted before it. Example: the team
        borrows 6 slots, earlier victims hold 4, and this victim holds 5. Then the team loses 3 guaranteed
        slots.
        """
        team = self.state.running[victim].team
        if team == self.team:
            return 0
        slots_before = sum(self.slots_taken[team]) + sum(self._slots_of(team, extra_victims))
        guaranteed_part: int = (
            slots_before + self.candidates.slots[victim] - max(slots_before, self._reclaimable(team))
        )
        return max(0, guaranteed_part)

    def _slots_of(self, team: int, victims: Sequence[int]) -> list[int]:
        return [self.candidates.slots[v] for v in victims if self.state.running[v].team == team]

    def _reclaimable(self, team: int) -> int:
        if team not in self.reclaimable:
            self.reclaimable[team] = self.state.ledger.reclaimable_slots(team, self.candidates.model)
        return self.reclaimable[team]

    def is_allowed(self, extra_victims: Sequence[int]) -> bool:
        """Return True if these victims may be added to the set.

        If ``may_cross_guarantee`` is False, no other team may lose guaranteed slots. If it is True, another
        team may lose guaranteed slots by the eviction of its largest victim. The team must then still borrow
        slots after the eviction of its other victims.
        """
        for team in {self.state.running[v].team for v in extra_victims} - {self.team}:
            slots = [*self.slots_taken[team], *self._slots_of(team, extra_victims)]
            if sum(slots) - (max(slots) if self.may_cross_guarantee else 0) >= self._reclaimable(team) + (
                not self.may_cross_guarantee
            ):
                return False
        return True

    def host_suffices(self, host: int, extra_victims: Sequence[int] = ()) -> bool:
        """Return True if the workload fits on a host after the set and ``extra_victims`` have stopped.

        For a workload on several hosts, only its part on one host is checked.
        """
        units, cpu, memory = int(self.free_units[host]), int(self.cpu[host]), int(self.memory[host])
        for victim in extra_victims:
            units += dict(self.units_freed_by(victim)).get(host, 0)
            cpu += self.state.running[victim].cpu_milli
            memory += self.state.running[victim].memory_mib
        ask = self.ask
        if units < ask.units or cpu < ask.cpu_milli or memory < ask.memory_mib or not self.labels[host]:
            return False
        return not ask.nvlink or self._has_island(host, extra_victims)

    def count_sufficient_hosts(self) -> int:
        """Return the number of hosts on which the workload fits after the set has stopped."""
        ask = self.ask
        enough = (
            (self.free_units >= ask.units) & (self.cpu >= ask.cpu_milli) & (self.memory >= ask.memory_mib)
        )
        hosts = (enough & self.labels).nonzero()[0]
        return sum(self.host_suffices(host) for host in hosts.tolist()) if ask.nvlink else len(hosts)

    def _has_island(self, host: int, extra_victims: Sequence[int]) -> bool:
        """Return True if one NVLink group of the host would have enough free units for the workload."""
        state, obtainable = self.state, self.obtainable
        first, last = int(state.first_unit[host]), int(state.first_unit[host + 1])
        victim_set = self.members | set(extra_victims)
        free = [
            u
            for u in range(first, last)
            if obtainable.units[u]
            and state.kind[u] == obtainable.kind
            and (obtainable.free[u] or int(state.holder[u]) in victim_set)
        ]
        return unit_selection.pick_units(state, self.ask, free) is not None
