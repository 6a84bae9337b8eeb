"""Choose the running work to evict if no free units suffice.

Rules:
- Work of other teams is evicted only if it is borrowed, and only for a workload that is wholly within the
  guarantee of its own team.
- Within a team, work of lower priority is evicted.
- Only preemptible work that has run for the pool's minimum runtime is evicted, and always as a whole.
- A workload never evicts the work for which it was itself evicted.

The search looks for the cheapest allowed set of victims. A victim costs its slots times the time since its
last checkpoint, plus half an hour times its slots for each past eviction. So evictions rotate, and a workload
is not evicted again and again because it is small, young or saves often. Work that is only partly borrowed is
evicted only if no set of wholly borrowed work suffices, regardless of the cost.

The search is greedy over hosts: it continues with the host that adds the least cost. On one host the cheapest
set is found exactly. Finally unnecessary victims are removed from the set, the most expensive first.
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

# The cost of a guaranteed slot: more than any lost work, so that borrowed slots are taken first.
GUARANTEED_SLOT_COST = 1 << 40


class VictimSearch:
    """The search for victims for one workload on units of one kind."""

    def __init__(self, state: PoolState, queued: QueuedWorkload, kind: int) -> None:
        self.state, self.queued, self.kind, self.ask = state, queued, kind, queued.ask
        model, self.need = state.kinds[kind].model, state.slots_needed(queued.ask, kind)
        room = headroom_for(state, queued, kind)
        self.over_limit = room.over
        self.over_user_cap = max(0, self.need - state.ledger.user_cap_left(queued.user))
        # True if non-preemptible work fills the team's guarantee: this work cannot be evicted.
        self.over_non_preemptible_guarantee = room.non_preemptible_only
        outside = queued.reservation is None
        self.may_reclaim_borrowed = outside and state.ledger.is_within_guarantee(
            queued.team, model, self.need
        )

    def run(self) -> EvictionChoice | None:
        """Return the cheapest allowed set that the search finds, or None if no set suffices."""
        if self.over_non_preemptible_guarantee:
            return None
        victims = evictable_for(self.state, self.queued, self.kind, self.may_reclaim_borrowed)
        if len(victims) == 0:
            return None
        self.obtainable = ObtainableUnits(self.state, self.queued, self.kind)
        self.candidates = EvictionCandidates(self.obtainable, victims)
        if not self.candidates.victims:
            return None
        bounds = self._host_cost_bounds()
        if len(bounds) < self.ask.hosts:
            return None
        for may_cross_guarantee in (False, True):
            victim_set = VictimSet(self.obtainable, self.candidates, may_cross_guarantee)
            if self._take_hosts(victim_set, bounds) and self._take_enough(victim_set):
                self._drop_unneeded_victims(victim_set)
                units = self.obtainable.units_after(victim_set.victims)
                if units is not None:
                    return EvictionChoice(victim_set.victims, units)
        return None

    def _host_cost_bounds(self) -> list[tuple[int, int]]:
        """Return (lower bound of the cost, host) for each host that would suffice if all candidates were
        evicted.

        The bound is computed as if parts of a victim could be evicted. With this bound the search skips
        nearly all hosts of a large pool.
        """
        state, ask, victims = self.state, self.ask, self.candidates
        if victims.by_host is not None:
            return self._bounds_of_few(victims.by_host)
        free = self.obtainable.counts
        obtainable_counts = free + np.bincount(
            victims.host, weights=victims.count, minlength=len(state.hosts)
        ).astype(np.int64)
        has_cpu_and_memory = intersection(
            state.cpu_free >= ask.cpu_milli, state.memory_free >= ask.memory_mib
        )
        has_cpu_and_memory[victims.host] = True  # victims may free CPU and memory there
        possible = (obtainable_counts >= ask.units) & state.label_mask(ask.labels) & has_cpu_and_memory
        if int(possible.sum()) < ask.hosts:
            return []
        price = state.cost[victims.victim] // victims.count
        order = np.lexsort((price, victims.host))
        host, count, price = victims.host[order], victims.count[order], price[order]
        before = np.cumsum(count) - count
        before -= before[np.searchsorted(host, host)]  # units freed on the same host by cheaper victims
        needed = np.clip(np.maximum(0, ask.units - free)[host] - before, 0, count)
        lower_bound = np.bincount(host, weights=needed * price, minlength=len(state.hosts)).astype(np.int64)
        hosts = np.flatnonzero(possible)
        return list(zip(lower_bound[hosts].tolist(), hosts.tolist(), strict=True))

    def _bounds_of_few(self, by_host: dict[int, list[tuple[int, int]]]) -> list[tuple[int, int]]:
        """Return the result of ``_host_cost_bounds`` for few candidates, computed without arrays."""
        ask, free, cost = self.ask, self.obtainable.counts, self.state.cost_list
        labels = self.state.label_mask(ask.labels)
        already_suitable = unit_selection.suitable_hosts(self.state, ask, free).nonzero()[0].tolist()
        victims = [(0, host) for host in already_suitable if host not in by_host]
        for host, on_host in by_host.items():
            missing, lower_bound = ask.units - int(free[host]), 0
            if missing > sum(units for _, units in on_host) or not labels[host]:
                continue
            for price, units in sorted((cost[victim] // units, units) for victim, units in on_host):
                if missing <= 0:
                    break
                lower_bound += price * min(units, missing)
                missing -= units
            victims.append((lower_bound, host))
        return victims

    def _take_hosts(self, victim_set: VictimSet, bounds: list[tuple[int, int]]) -> bool:
        """Add victims host by host until enough hosts suffice. Return False if there are not enough hosts."""
        heap: list[tuple[int, int, int, int, list[int]]] = [
            (lower_bound, 0, host, -1, []) for lower_bound, host in bounds
        ]
        heapq.heapify(heap)
        missing_hosts, done_hosts, version = self.ask.hosts, set[int](), 0
        while missing_hosts and heap:
            _, _, host, seen_version, chosen = heapq.heappop(heap)
            if host in done_hosts:
                continue
            if seen_version != version and not (
                seen_version >= 0 and self._choice_is_still_valid(victim_set, host, chosen)
            ):
                choice = self._cheapest_on(victim_set, host)
                if choice is not None:
                    heapq.heappush(heap, (choice[0], len(choice[1]), host, version, choice[1]))
                continue
            done_hosts.add(host)
            missing_hosts -= 1
            if chosen:
                version += 1
                for other in victim_set.add(chosen):
                    if other not in done_hosts:  # The victims also free resources on this host.
                        heapq.heappush(heap, (0, 0, other, -1, []))
        return missing_hosts == 0

    def _choice_is_still_valid(self, victim_set: VictimSet, host: int, chosen: list[int]) -> bool:
        """Return True if the victims chosen for a host are still allowed and sufficient, and none of them is
        in the set yet.
        """
        return (
            not victim_set.members.intersection(chosen)
            and victim_set.is_allowed(chosen)
            and victim_set.host_suffices(host, chosen)
        )

    def _cheapest_on(self, victim_set: VictimSet, host: int) -> tuple[int, list[int]] | None:
        """Return (cost, victims): the cheapest victims that suffice on one host. Return None if there are
        none.
        """
        if victim_set.host_suffices(host):
            return 0, []
        on_host = [
            (victim, count)
            for victim, count in self.candidates.on_host(host)
            if victim not in victim_set.members
        ]
        chosen = self._cheapest_exact(victim_set, host, on_host)
        if chosen is None or not victim_set.is_allowed(chosen) or not victim_set.host_suffices(host, chosen):
            chosen = self._cheapest_greedy(victim_set, host, on_host)
        return None if chosen is None else (self._cost(victim_set, chosen), chosen)

    def _cheapest_exact(
        self, victim_set: VictimSet, host: int, on_host: list[tuple[int, int]]
    ) -> list[int] | None:
        """Return the cheapest victims that free enough units on one host, or None.

        This is dynamic programming over the number of units.
        """
        missing = self.ask.units - int(victim_set.free_units[host])
        best: list[tuple[int, tuple[int, ...]] | None] = [(0, ()), *[None] * max(0, missing)]
        for victim, count in on_host:
            price = self._cost(victim_set, [victim])
            for units in range(len(best) - 1, 0, -1):
                best_without = best[max(0, units - count)]
                if best_without is not None:
                    offer = best_without[0] + price, (*best_without[1], victim)
                    present = best[units]
                    if present is None or offer[0] < present[0]:
                        best[units] = offer
        return None if best[-1] is None else list(best[-1][1])

    def _cheapest_greedy(
        self, victim_set: VictimSet, host: int, on_host: list[tuple[int, int]]
    ) -> list[int] | None:
        """Return victims that suffice on one host, or None.

        Victims are added one by one, then unnecessary victims are removed. This is used if the exact choice
        is not allowed, or does not suffice because of CPU, memory or NVLink.
        """
        chosen: list[int] = []
        for victim, _ in on_host:
            if victim_set.is_allowed([*chosen, victim]):
                chosen.append(victim)
                if victim_set.host_suffices(host, chosen):
                    for candidate in sorted(chosen, key=self._most_expensive_first):
                        without = [v for v in chosen if v != candidate]
                        chosen = without if victim_set.host_suffices(host, without) else chosen
                    return chosen
        return None

    def _cost(self, victim_set: VictimSet, victims: Sequence[int]) -> int:
        """Return the cost of adding these victims to the set."""
        costs = self.state.cost_list
        lost = sum([costs[v] for v in victims])
        if not victim_set.may_cross_guarantee:
            return lost
        return lost + GUARANTEED_SLOT_COST * sum(
            victim_set.over_guarantee(v, victims[:i]) for i, v in enumerate(victims)
        )

    def _take_enough(self, victim_set: VictimSet) -> bool:
        """Add victims until quota, user cap and spare capacity also suffice. Return True on success."""
        for candidate in self.candidates.victims:
            if self._is_enough(victim_set.victims):
                return True
            if candidate not in victim_set.members and victim_set.is_allowed([candidate]):
                victim_set.add([candidate])
        return self._is_enough(victim_set.victims)

    def _is_enough(self, victims: Sequence[int]) -> bool:
        """Return True if quota, user cap and the pool's spare capacity suffice once these victims have
        stopped.
        """
        state, slots = self.state, self.candidates.slots
        own = (
            sum(slots[v] for v in victims if state.running[v].team == self.queued.team)
            if self.over_limit
            else 0
        )
        same_user = (
            sum(slots[v] for v in victims if state.running[v].user == self.queued.user)
            if self.over_user_cap
            else 0
        )
        return own >= self.over_limit and same_user >= self.over_user_cap and self._leaves_spare(victims)

    def _leaves_spare(self, victims: Sequence[int]) -> bool:
        state, spare = self.state, self.state.policy.spare_slots
        if spare == 0 or may_use_spare(self.queued):
            return True
        freed = sum(int(state.run_slots[v]) for v in victims)
        return state.free_slots + freed - self.need >= spare

    def _drop_unneeded_victims(self, victim_set: VictimSet) -> None:
        """Remove unnecessary victims, the most expensive first.

        A victim is unnecessary if enough hosts suffice without it.
        """
        if len(victim_set.victims) == 1:
            return  # A single victim is necessary: the search is not started if no eviction is needed.
        sufficient_hosts = victim_set.count_sufficient_hosts()
        for victim in sorted(victim_set.victims, key=self._most_expensive_first):
            hosts = [host for host, _ in victim_set.units_freed_by(victim)]
            before = sum(victim_set.host_suffices(host) for host in hosts)
            victim_set.remove(victim)
            after = sufficient_hosts - before + sum(victim_set.host_suffices(host) for host in hosts)
            if after >= self.ask.hosts and self._is_enough(victim_set.victims):
                sufficient_hosts = after
            else:
                victim_set.add([victim])

    def _most_expensive_first(self, victim: int) -> tuple[int, int]:
        return -self.state.cost_list[victim], -self.state.running[victim].id


def kinds_to_try_eviction_on(state: PoolState, queued: QueuedWorkload) -> list[int]:
    """Return the kinds on which the workload could evict work. This fast check excludes most workloads."""
    ask, ledger = state.resolve_ask(queued.ask), state.ledger
    borrowed = state.kinds_with_borrowed_work if queued.reservation is None else frozenset[int]()
    return [
        kind
        for kind in ask.kinds
        if state.has_evictable_work(queued.team, kind, queued.priority)
        or (
            kind in borrowed
            and ledger.is_within_guarantee(queued.team, state.kinds[kind].model, ask.slots[kind])
        )
    ]


def find_victims(state: PoolState, queued: QueuedWorkload, kind: int) -> EvictionChoice | None:
    """Return the running work to evict, and the units that the workload then gets.

    Return None if no allowed set of victims suffices.
    """
    return VictimSearch(state, queued, kind).run()
