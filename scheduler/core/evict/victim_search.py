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
from collections.abc import Sequence

import numpy as np

from scheduler.core.arrays import intersection
from scheduler.core.evict.candidates import EvictionCandidates, EvictionChoice, ObtainableUnits, evictable_for
from scheduler.core.evict.victim_set import VictimSet
from scheduler.core.fit import unit_selection
from scheduler.core.fit.quota_limits import headroom_for, may_use_spare
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import QueuedWorkload

GUARANTEED_SLOT_COST = (
    1 << 40
)  # what a guaranteed slot costs: more than any work lost, so that borrowed slots go first


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
        self.may_reclaim_borrowed = outside and board.ledger.is_within_guarantee(
            queued.team, model, self.need
        )

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
        most = free + np.bincount(found.host, weights=found.count, minlength=len(board.hosts)).astype(
            np.int64
        )
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
        heap: list[tuple[int, int, int, int, list[int]]] = [
            (least, 0, host, -1, []) for least, host in bounds
        ]
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
        return (
            not taking.gone.intersection(chosen) and taking.is_lawful(chosen) and taking.serves(host, chosen)
        )

    def _cheapest_on(self, taking: VictimSet, host: int) -> tuple[int, list[int]] | None:
        """(cost, victims) that would free enough of one host, or None."""
        if taking.serves(host):
            return 0, []
        here = [
            (victim, count) for victim, count in self.candidates.on_host(host) if victim not in taking.gone
        ]
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
        return lost + GUARANTEED_SLOT_COST * sum(
            taking.over_guarantee(v, victims[:i]) for i, v in enumerate(victims)
        )

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
        own = (
            sum(slots[v] for v in victims if board.running[v].team == self.queued.team)
            if self.over_limit
            else 0
        )
        same_user = (
            sum(slots[v] for v in victims if board.running[v].user == self.queued.user)
            if self.over_user_cap
            else 0
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
        or (
            kind in borrowed
            and ledger.is_within_guarantee(queued.team, board.kinds[kind].model, ask.slots[kind])
        )
    ]


def find_victims(board: PoolState, queued: QueuedWorkload, kind: int) -> EvictionChoice | None:
    """The running work to evict so that a workload can start, or None when there is no lawful way."""
    return VictimSearch(board, queued, kind).run()
