"""Choose the running workloads to evict (the victims) if a waiting workload does not fit on free units.

A team's guarantee is the number of slots that it can always have. Slots above it are borrowed. The rules are:

- Work of another team is evicted only if that team borrows, and only for a workload that is wholly within the
  guarantee of its own team.
- Within a team, a workload may evict work of lower priority.
- Only preemptible work that has run for the pool's minimum runtime is evicted, and always on all its units.
- If workload A was evicted for workload B, A does not evict B in return.

The search looks for the cheapest allowed set of victims. The cost of a victim is its slots times a duration:
the time since its last checkpoint, plus half an hour for each past eviction. Example: 2 GPUs, 10 minutes
since the checkpoint and one past eviction cost 2 x (10 + 30) = 80 GPU-minutes. Without the half hours, a
workload that is small or saves often would be evicted again and again.

A first search takes only victims whose slots are wholly borrowed. Only if the first search fails, a second
search may also take victims whose slots are partly borrowed. This holds even if the second search would find
cheaper victims.

The search goes host by host and continues with the host that adds the least cost. On each host it computes
the cheapest set of victims that frees enough units. If this set is not allowed, or frees too little CPU or
memory, the search adds victims one by one instead. At the end it removes unnecessary victims, the most
expensive first.
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

# The cost of taking one guaranteed slot. It is larger than any cost of lost work, so that the search takes
# borrowed slots first.
GUARANTEED_SLOT_COST = 1 << 40


class VictimSearch:
    """The search for victims for one workload on units of one kind."""

    def __init__(self, state: PoolState, queued: QueuedWorkload, kind: int) -> None:
        self.state, self.queued, self.kind, self.ask = state, queued, kind, queued.ask
        model, self.need = state.kinds[kind].model, state.slots_needed(queued.ask, kind)
        room = headroom_for(state, queued, kind)
        self.over_limit = room.over
        self.over_user_cap = max(0, self.need - state.ledger.user_cap_left(queued.user))
        # True if the workload does not fit because non-preemptible work fills its team's guarantee. Evictions
        # cannot help then.
        self.over_non_preemptible_guarantee = room.non_preemptible_only
        outside = queued.reservation is None
        self.may_reclaim_borrowed = outside and state.ledger.is_within_guarantee(
            queued.team, model, self.need
        )

    def run(self) -> EvictionChoice | None:
        """Return the cheapest allowed victims that the search finds, with the units for the workload.

        Return None if no allowed set of victims makes enough room.
        """
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
        """Return (lower bound of the cost, host) for each host that could have enough room.

        A host is included if it would have enough room after the eviction of all candidates. The bound
        assumes that a part of a victim can be evicted, so the true cost is never lower. With these bounds the
        search skips nearly all hosts of a large pool.
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
        """Return the result of ``_host_cost_bounds`` for few candidates, with a Python loop."""
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
        """Add victims host by host until enough hosts have room for the workload.

        Return False if there are not enough such hosts.
        """
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
        """Return True if the victims that were chosen for a host can still be added to the set.

        They must still be allowed, still make enough room on the host, and not be in the set yet.
        """
        return (
            not victim_set.members.intersection(chosen)
            and victim_set.is_allowed(chosen)
            and victim_set.host_suffices(host, chosen)
        )

    def _cheapest_on(self, victim_set: VictimSet, host: int) -> tuple[int, list[int]] | None:
        """Return (cost, victims): the cheapest victims that are found to make enough room on one host.

        Return None if none are found.
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
        """Return the cheapest victims that free enough units on one host.

        The method is dynamic programming over the number of units. The result is None if all candidates
        together free too few units. The caller checks whether the victims are allowed and whether they also
        free enough CPU and memory.
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
        """Return victims that make enough room on one host, or None if none are found.

        Victims are added one by one, then unnecessary victims are removed. The result may not be the
        cheapest. This method is used if ``_cheapest_exact`` finds no victims, or victims that are not allowed
        or free too little CPU or memory.
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
        """Add victims until quota, user cap and the pool's spare capacity also allow the start.

        Return False if they never do.
        """
        for candidate in self.candidates.victims:
            if self._is_enough(victim_set.victims):
                return True
            if candidate not in victim_set.members and victim_set.is_allowed([candidate]):
                victim_set.add([candidate])
        return self._is_enough(victim_set.victims)

    def _is_enough(self, victims: Sequence[int]) -> bool:
        """Return True if quota, user cap and spare capacity allow the start after these victims have stopped.

        Spare capacity is slots that the pool keeps free for critical work.
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

        A victim is unnecessary if the workload can still start without its eviction.
        """
        if len(victim_set.victims) == 1:
            return  # A single victim is necessary, because the search runs only if an eviction is needed.
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
    """Return the kinds of units on which the workload might evict work.

    This check is fast, and for most workloads it already excludes every eviction.
    """
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

    Return None if no allowed set of victims makes enough room.
    """
    return VictimSearch(state, queued, kind).run()
