from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from scheduler.core.arrays import Ints
from scheduler.core.evict.candidates import EvictionCandidates, ObtainableUnits
from scheduler.core.fit import unit_selection


class VictimSet:
    """A set of victims that grows: what is free on each host once they are gone, and what it costs their teams."""

    def __init__(self, place: ObtainableUnits, candidates: EvictionCandidates, straddling: bool) -> None:
        self.place, self.board, self.ask = place, place.board, place.ask
        self.candidates, self.may_cross_guarantee = candidates, straddling
        self.team = place.queued.team
        self.victims: list[int] = []
        self.gone: set[int] = set()
        self.taken: dict[int, list[int]] = defaultdict(list)  # other teams -> slots of each victim
        self.units: Ints = place.counts.copy()
        self.cpu, self.memory = self.board.cpu_free.copy(), self.board.memory_free.copy()
        self.labels = self.board.label_mask(self.ask.labels)
        self.excess: dict[int, int] = {}
        self.units_freed_cache: dict[int, list[tuple[int, int]]] = {}  # victim -> (host, units of use there)

    def add(self, victims: Sequence[int]) -> list[int]:
        """Take these; the hosts on which something comes free."""
        hosts: dict[int, None] = {}
        for victim in victims:
            self.victims.append(victim)
            self.gone.add(victim)
            if self.board.running[victim].team != self.team:
                self.taken[self.board.running[victim].team].append(self.candidates.slots[victim])
            hosts |= dict.fromkeys(self._free(victim, 1))
        return list(hosts)

    def drop(self, victim: int) -> None:
        """Let one off."""
        self.victims.remove(victim)
        self.gone.discard(victim)
        if self.board.running[victim].team != self.team:
            self.taken[self.board.running[victim].team].remove(self.candidates.slots[victim])
        self._free(victim, -1)

    def _free(self, victim: int, sign: int) -> list[int]:
        running = self.board.running[victim]
        for host, units in self.units_freed_by(victim):
            self.units[host] += sign * units
            self.cpu[host] += sign * running.cpu_milli
            self.memory[host] += sign * running.memory_mib
        return [host for host, _ in self.units_freed_by(victim)]

    def units_freed_by(self, victim: int) -> list[tuple[int, int]]:
        """(host, units of use to the ask) of every host a victim is on."""
        known = self.units_freed_cache.get(victim)
        if known is None:
            ground, units = self.board.ground, self.board.units_of[victim]
            count = dict.fromkeys((ground.host_list[u] for u in units), 0)
            for unit in units:
                if ground.kind_list[unit] == self.place.kind and self.place.units[unit]:
                    count[ground.host_list[unit]] += 1
            known = self.units_freed_cache[victim] = sorted(count.items())
        return known

    # -- is it allowed, is it enough --------------------------------------------------------------------------------

    def over_guarantee(self, victim: int, more: Sequence[int]) -> int:
        """How many slots that its team is guaranteed would go with a victim, after those taken and ``more``."""
        team = self.board.running[victim].team
        if team == self.team:
            return 0
        before = sum(self.taken[team]) + sum(self._slots_of(team, more))
        more_than_borrowed: int = before + self.candidates.slots[victim] - max(before, self._excess(team))
        return max(0, more_than_borrowed)

    def _slots_of(self, team: int, victims: Sequence[int]) -> list[int]:
        return [self.candidates.slots[v] for v in victims if self.board.running[v].team == team]

    def _excess(self, team: int) -> int:
        if team not in self.excess:
            self.excess[team] = self.board.ledger.excess(team, self.candidates.model)
        return self.excess[team]

    def is_lawful(self, more: Sequence[int]) -> bool:
        """May these go, too? Nothing guaranteed goes; when ``straddling``, each team still has something borrowed when the
        last of its victims is taken."""
        for team in {self.board.running[v].team for v in more} - {self.team}:
            slots = [*self.taken[team], *self._slots_of(team, more)]
            if sum(slots) - (max(slots) if self.may_cross_guarantee else 0) >= self._excess(team) + (
                not self.may_cross_guarantee
            ):
                return False
        return True

    def serves(self, host: int, more: Sequence[int] = ()) -> bool:
        """Would a host do once those taken, and ``more``, are gone?"""
        units, cpu, memory = int(self.units[host]), int(self.cpu[host]), int(self.memory[host])
        for victim in more:
            units += dict(self.units_freed_by(victim)).get(host, 0)
            cpu += self.board.running[victim].cpu_milli
            memory += self.board.running[victim].memory_mib
        ask = self.ask
        if units < ask.units or cpu < ask.cpu_milli or memory < ask.memory_mib or not self.labels[host]:
            return False
        return not ask.nvlink or self._has_island(host, more)

    def count_sufficient_hosts(self) -> int:
        """How many hosts would do once those taken are gone."""
        ask = self.ask
        enough = (self.units >= ask.units) & (self.cpu >= ask.cpu_milli) & (self.memory >= ask.memory_mib)
        hosts = (enough & self.labels).nonzero()[0]
        return sum(self.serves(host) for host in hosts.tolist()) if ask.nvlink else len(hosts)

    def _has_island(self, host: int, more: Sequence[int]) -> bool:
        board, place = self.board, self.place
        first, last = int(board.first_unit[host]), int(board.first_unit[host + 1])
        gone = self.gone | set(more)
        free = [
            u
            for u in range(first, last)
            if place.units[u]
            and board.kind[u] == place.kind
            and (place.free[u] or int(board.holder[u]) in gone)
        ]
        return unit_selection.pick_units(board, self.ask, free) is not None
