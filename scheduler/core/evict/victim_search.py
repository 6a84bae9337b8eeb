"""Who has to make room, when nothing free will do.

Across teams only borrowed work is evicted, and only for work wholly within its team's guarantee; within a team, work of
lower priority. Only preemptible work that ran for the pool's minimum runtime, only whole workloads, and never the one
that this workload had to make room for. Of all such sets the cheapest is wanted.

A victim costs the time since its last checkpoint x its slots, and half an hour x its slots for each time it had to go
before: so victims take turns, and nobody is told to go over and over because it is small, young or saves often. But
turns are taken among borrowed work only: a workload that straddles its team's guarantee goes when no set of wholly
borrowed ones would do, however often those had to go before.

The search goes host by host, each time to the host where the least more is to be paid; on one host the cheapest set is
found exactly. In the end every victim that proves unnecessary is let off, the dearest first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scheduler.core.fit import unit_selection
from scheduler.core.fit.quota_limits import headroom_for, may_use_spare
from scheduler.core.model.pool_state import NO_HOLDER, Ints, Mask, PoolState, intersection
from scheduler.core.model.snapshot import QueuedWorkload

MAX_READ_SINGLY = 64  # candidates that are sooner read one by one than as arrays
GUARANTEED_SLOT_COST = 1 << 40  # what a guaranteed slot costs: more than any work lost, so that borrowed slots go first


@dataclass(frozen=True, slots=True)
class EvictionChoice:
    """Indices of running work that has to go, and the units (free or freed) kept for the ask."""

    victims: list[int]
    units: list[int]


class ObtainableUnits:
    """What one workload could use of one kind of unit if nobody was on it."""

    def __init__(self, board: PoolState, queued: QueuedWorkload, kind: int) -> None:
        self.board, self.queued, self.kind, self.ask = board, queued, kind, queued.ask
        self.units = self._units()
        self.counts = (  # per host
            board.free_counts_within(kind, unit_selection.time_class(board, queued))
            if board.can_use_shared_counts(queued)
            else unit_selection.host_counts(board, kind, self.free)
        )

    @cached_property
    def free(self) -> Mask:
        """Those that nobody is on; most searches end without."""
        return intersection(self.units, self.board.holder == NO_HOLDER)

    def _units(self) -> Mask:
        board, queued = self.board, self.queued
        if queued.reservation is not None:
            return intersection(board.bound == queued.reservation, board.usable)
        mask = intersection(board.assignable, board.kept == 0)
        if queued.id in board.workloads_with_earmarks:
            mask |= intersection(board.assignable, board.kept == queued.id)
        if board.is_shared(queued.ask):
            mask = intersection(mask, unit_selection.units_without_other_teams_shares(board, queued.team))
        in_time = unit_selection.units_clear_of_promises(board, queued)
        return mask if in_time is None else intersection(mask, in_time)

    def units_after(self, victims: Iterable[int]) -> list[int] | None:
        """The units the ask would get once these are gone."""
        board, mask = self.board, self.free.copy()
        cpu, memory = board.cpu_free.copy(), board.memory_free.copy()
        for victim in victims:
            units = board.units_of[victim]
            mask[units] = self.units[units]
            for host in {board.ground.host_list[u] for u in units}:
                cpu[host] += board.running[victim].cpu_milli
                memory[host] += board.running[victim].memory_mib
        return unit_selection.choose_units(board, self.ask, self.kind, mask, unit_selection.HostResources(cpu, memory))


class EvictionCandidates:
    """Work that may be told to go for one workload, the cheapest first, and what each would free where."""

    def __init__(self, place: ObtainableUnits, found: Ints) -> None:
        """``found`` in the order in which they are tried."""
        self.place, self.board, self.model = place, place.board, place.board.kinds[place.kind].model
        if len(found) <= MAX_READ_SINGLY:
            self._read_few(found.tolist())
        else:
            self._read_many(found)

    def _read_few(self, found: list[int]) -> None:
        """As below, without the cost of arrays: most searches have a handful of candidates."""
        board, ground, kind = self.board, self.board.ground, self.place.kind
        self.slots: dict[int, int] = {}
        self.by_host: dict[int, list[tuple[int, int]]] | None = {}
        self.victims = []
        kinds, hosts, sizes, model_of = ground.kind_list, ground.host_list, ground.slots_list, ground.model_of_kind
        usable = self.place.units.tobytes()  # single elements of arrays are slow to read
        for victim in found:
            count: dict[int, int] = {}
            slots = 0
            for unit in board.units_of[victim]:
                if model_of[kinds[unit]] == model_of[kind]:
                    slots += sizes[unit]
                    if kinds[unit] == kind and usable[unit]:
                        count[hosts[unit]] = count.get(hosts[unit], 0) + 1
            self.slots[victim] = slots
            for host, units in count.items():
                self.by_host.setdefault(host, []).append((victim, units))
            if count:
                self.victims.append(victim)

    def _read_many(self, found: Ints) -> None:
        """Who would free how many units of which host, as arrays of equal length, by host and then by cost."""
        board, place = self.board, self.place
        self.by_host = None
        units, owner = board.units_by_workload(found)
        of_model = board.ground.model_of_unit[units] == board.ground.models.index(self.model)
        slots = np.bincount(owner[of_model], weights=board.slots[units[of_model]], minlength=len(found))
        self.slots = dict(zip(found.tolist(), slots.astype(int).tolist(), strict=True))
        useful = place.units[units] & (board.kind[units] == place.kind)
        pairs, self.count = np.unique(board.host_of[units[useful]] * len(found) + owner[useful], return_counts=True)
        self.host, self.victim = pairs // len(found), found[pairs % len(found)]
        self.victims = found[np.unique(owner[useful])].tolist()  # those that hold something of use

    def on_host(self, host: int) -> list[tuple[int, int]]:
        """(victim, units it would free there), the cheapest first."""
        if self.by_host is not None:
            return self.by_host.get(host, [])
        first, last = self.host.searchsorted((host, host + 1)).tolist()
        return list(zip(self.victim[first:last].tolist(), self.count[first:last].tolist(), strict=True))


def evictable_for(board: PoolState, queued: QueuedWorkload, kind: int, reclaims: bool) -> Ints:
    """The running work that may be told to go for a workload, the cheapest first."""
    own = board.team_work_by_eviction_cost(queued.team)
    own = own[board.evictable[own] & (board.run_priority[own] < queued.priority)]
    found: Ints = own[board.run_reservation[own] == (queued.reservation or 0)]
    if reclaims and kind in board.kinds_with_borrowed_work:
        found = np.concatenate((found, board.evictable_borrowed_work(board.kinds[kind].model, queued.team)))
        found = found[np.lexsort((board.run_id[found], board.cost[found]))]
    if queued.evicted_by is not None:
        found = found[board.run_id[found] != queued.evicted_by]
    return found


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
            if sum(slots) - (max(slots) if self.may_cross_guarantee else 0) >= self._excess(team) + (not self.may_cross_guarantee):
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
            if place.units[u] and board.kind[u] == place.kind and (place.free[u] or int(board.holder[u]) in gone)
        ]
        return unit_selection.pick_units(board, self.ask, free) is not None


class VictimSearch:
    """One search for room: for one workload, on units of one kind."""

    def __init__(self, board: PoolState, queued: QueuedWorkload, kind: int) -> None:
        self.board, self.queued, self.kind, self.ask = board, queued, kind, queued.ask
        model, self.need = board.kinds[kind].model, board.slots_needed(queued.ask, kind)
        room = headroom_for(board, queued, kind)
        self.over_limit = room.over
        self.over_user_cap = max(0, self.need - board.ledger.user_cap_left(queued.user))
        self.hopeless = room.firm  # what fills its team's guarantee may not be evicted
        outside = queued.reservation is None
        self.may_reclaim_borrowed = outside and board.ledger.is_within_guarantee(queued.team, model, self.need)

    def run(self) -> EvictionChoice | None:
        """The cheapest lawful set found, or None when no set would do."""
        if self.hopeless:
            return None
        found = evictable_for(self.board, self.queued, self.kind, self.may_reclaim_borrowed)
        if len(found) == 0:
            return None
        self.place = ObtainableUnits(self.board, self.queued, self.kind)
        self.candidates = EvictionCandidates(self.place, found)
        if not self.candidates.victims:
            return None
        bounds = self._host_cost_bounds()
        if len(bounds) < self.ask.hosts:
            return None
        for straddling in (False, True):
            taking = VictimSet(self.place, self.candidates, straddling)
            if self._take_hosts(taking, bounds) and self._take_enough(taking):
                self._drop_unneeded_victims(taking)
                units = self.place.units_after(taking.victims)
                if units is not None:
                    return EvictionChoice(taking.victims, units)
        return None

    def _host_cost_bounds(self) -> list[tuple[int, int]]:
        """(what it costs at least, host) of each host that would do if every candidate was gone.

        At least: as if a part of a victim could go. It spares looking closely at nearly all hosts of a large pool.
        """
        board, ask, found = self.board, self.ask, self.candidates
        if found.by_host is not None:
            return self._bounds_of_few(found.by_host)
        free = self.place.counts
        most = free + np.bincount(found.host, weights=found.count, minlength=len(board.hosts)).astype(np.int64)
        roomy = intersection(board.cpu_free >= ask.cpu_milli, board.memory_free >= ask.memory_mib)
        roomy[found.host] = True  # CPU and memory may come free there, too
        possible = (most >= ask.units) & board.label_mask(ask.labels) & roomy
        if int(possible.sum()) < ask.hosts:
            return []
        price = board.cost[found.victim] // found.count
        order = np.lexsort((price, found.host))
        host, count, price = found.host[order], found.count[order], price[order]
        before = np.cumsum(count) - count
        before -= before[np.searchsorted(host, host)]  # freed on the same host by cheaper ones
        needed = np.clip(np.maximum(0, ask.units - free)[host] - before, 0, count)
        least = np.bincount(host, weights=needed * price, minlength=len(board.hosts)).astype(np.int64)
        hosts = np.flatnonzero(possible)
        return list(zip(least[hosts].tolist(), hosts.tolist(), strict=True))

    def _bounds_of_few(self, by_host: dict[int, list[tuple[int, int]]]) -> list[tuple[int, int]]:
        """The same without the cost of arrays."""
        ask, free, cost = self.ask, self.place.counts, self.board.cost_list
        labels = self.board.label_mask(ask.labels)
        as_it_is = unit_selection.suitable_hosts(self.board, ask, free).nonzero()[0].tolist()
        found = [(0, host) for host in as_it_is if host not in by_host]
        for host, here in by_host.items():
            missing, least = ask.units - int(free[host]), 0
            if missing > sum(units for _, units in here) or not labels[host]:
                continue
            for price, units in sorted((cost[victim] // units, units) for victim, units in here):
                if missing <= 0:
                    break
                least += price * min(units, missing)
                missing -= units
            found.append((least, host))
        return found

    def _take_hosts(self, taking: VictimSet, bounds: list[tuple[int, int]]) -> bool:
        """Take victims host by host until there are enough hosts; False when there are not."""
        heap: list[tuple[int, int, int, int, list[int]]] = [(least, 0, host, -1, []) for least, host in bounds]
        heapq.heapify(heap)
        left, done, version = self.ask.hosts, set[int](), 0
        while left and heap:
            _, _, host, seen, chosen = heapq.heappop(heap)
            if host in done:
                continue
            if seen != version and not (seen >= 0 and self._choice_is_still_valid(taking, host, chosen)):
                judged = self._cheapest_on(taking, host)
                if judged is not None:
                    heapq.heappush(heap, (judged[0], len(judged[1]), host, version, judged[1]))
                continue
            done.add(host)
            left -= 1
            if chosen:
                version += 1
                for other in taking.add(chosen):
                    if other not in done:  # something came free there, too
                        heapq.heappush(heap, (0, 0, other, -1, []))
        return left == 0

    def _choice_is_still_valid(self, taking: VictimSet, host: int, chosen: list[int]) -> bool:
        """Was this host's choice made with nothing of it gone since, and may they still go?"""
        return not taking.gone.intersection(chosen) and taking.is_lawful(chosen) and taking.serves(host, chosen)

    def _cheapest_on(self, taking: VictimSet, host: int) -> tuple[int, list[int]] | None:
        """(cost, victims) that would free enough of one host, or None."""
        if taking.serves(host):
            return 0, []
        here = [(victim, count) for victim, count in self.candidates.on_host(host) if victim not in taking.gone]
        chosen = self._cheapest_exact(taking, host, here)
        if chosen is None or not taking.is_lawful(chosen) or not taking.serves(host, chosen):
            chosen = self._cheapest_greedy(taking, host, here)
        return None if chosen is None else (self._cost(taking, chosen), chosen)

    def _cheapest_exact(self, taking: VictimSet, host: int, here: list[tuple[int, int]]) -> list[int] | None:
        """The cheapest victims on one host by the units they free alone: the best for each number of units in turn."""
        missing = self.ask.units - int(taking.units[host])
        best: list[tuple[int, tuple[int, ...]] | None] = [(0, ()), *[None] * max(0, missing)]
        for victim, count in here:
            price = self._cost(taking, [victim])
            for units in range(len(best) - 1, 0, -1):
                known = best[max(0, units - count)]
                if known is not None:
                    offer = known[0] + price, (*known[1], victim)
                    present = best[units]
                    if present is None or offer[0] < present[0]:
                        best[units] = offer
        return None if best[-1] is None else list(best[-1][1])

    def _cheapest_greedy(self, taking: VictimSet, host: int, here: list[tuple[int, int]]) -> list[int] | None:
        """As above where law, CPU, memory or NVLink have a say: one after another, then without the unnecessary."""
        chosen: list[int] = []
        for victim, _ in here:
            if taking.is_lawful([*chosen, victim]):
                chosen.append(victim)
                if taking.serves(host, chosen):
                    for one in sorted(chosen, key=self._most_expensive_first):
                        without = [v for v in chosen if v != one]
                        chosen = without if taking.serves(host, without) else chosen
                    return chosen
        return None

    def _cost(self, taking: VictimSet, victims: Sequence[int]) -> int:
        """What is lost with these on top of what is taken."""
        costs = self.board.cost_list
        lost = sum([costs[v] for v in victims])
        if not taking.may_cross_guarantee:
            return lost
        return lost + GUARANTEED_SLOT_COST * sum(taking.over_guarantee(v, victims[:i]) for i, v in enumerate(victims))

    def _take_enough(self, taking: VictimSet) -> bool:
        """Quota, cap or spare may need more to go than the units themselves do."""
        for candidate in self.candidates.victims:
            if self._is_enough(taking.victims):
                return True
            if candidate not in taking.gone and taking.is_lawful([candidate]):
                taking.add([candidate])
        return self._is_enough(taking.victims)

    def _is_enough(self, victims: Sequence[int]) -> bool:
        """Quota, user cap and the pool's spare capacity once these are gone."""
        board, slots = self.board, self.candidates.slots
        own = sum(slots[v] for v in victims if board.running[v].team == self.queued.team) if self.over_limit else 0
        same_user = (
            sum(slots[v] for v in victims if board.running[v].user == self.queued.user) if self.over_user_cap else 0
        )
        return own >= self.over_limit and same_user >= self.over_user_cap and self._leaves_spare(victims)

    def _leaves_spare(self, victims: Sequence[int]) -> bool:
        board, spare = self.board, self.board.policy.spare_slots
        if spare == 0 or may_use_spare(self.queued):
            return True
        freed = sum(int(board.run_slots[v]) for v in victims)
        return board.free_slots + freed - self.need >= spare

    def _drop_unneeded_victims(self, taking: VictimSet) -> None:
        """Drop every victim that proves unnecessary, the dearest first: one whose hosts are not needed without it."""
        if len(taking.victims) == 1:
            return  # without it nothing would do: who needs nobody to go does not come here
        serving = taking.count_sufficient_hosts()
        for victim in sorted(taking.victims, key=self._most_expensive_first):
            hosts = [host for host, _ in taking.units_freed_by(victim)]
            before = sum(taking.serves(host) for host in hosts)
            taking.drop(victim)
            after = serving - before + sum(taking.serves(host) for host in hosts)
            if after >= self.ask.hosts and self._is_enough(taking.victims):
                serving = after
            else:
                taking.add([victim])

    def _most_expensive_first(self, victim: int) -> tuple[int, int]:
        return -self.board.cost_list[victim], -self.board.running[victim].id


def kinds_to_try_eviction_on(board: PoolState, queued: QueuedWorkload) -> list[int]:
    """The kinds on which a workload might evict somebody: a quick no for the many that could not."""
    ask, ledger = board.wanted(queued.ask), board.ledger
    borrowed = board.kinds_with_borrowed_work if queued.reservation is None else frozenset[int]()
    return [
        kind
        for kind in ask.kinds
        if board.has_evictable_work(queued.team, kind, queued.priority)
        or (kind in borrowed and ledger.is_within_guarantee(queued.team, board.kinds[kind].model, ask.slots[kind]))
    ]


def find_victims(board: PoolState, queued: QueuedWorkload, kind: int) -> EvictionChoice | None:
    """The running work to evict so that a workload can start, or None when there is no lawful way."""
    return VictimSearch(board, queued, kind).run()
