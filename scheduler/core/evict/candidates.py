"""Find the running work that a waiting workload may evict, and the units that it could get.

A victim is a running workload that is chosen for eviction. A candidate is one that may be chosen. A unit is a
whole GPU, a MIG slice or a share. A kind is a set of units that the request cannot tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scheduler.core.arrays import Ints, Mask, intersection
from scheduler.core.fit import availability, unit_selection
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.running_work import NO_HOLDER
from scheduler.core.model.snapshot import QueuedWorkload

MAX_READ_ONE_BY_ONE = 64  # Up to this many candidates, a Python loop is faster than numpy arrays.


@dataclass(frozen=True, slots=True)
class EvictionChoice:
    """The result of a search: the victims, and the units that the waiting workload will get.

    Both are indices. The units are free units and units of the victims.
    """

    victims: list[int]
    units: list[int]


class ObtainableUnits:
    """The units of one kind that one workload could use if no running work held them."""

    def __init__(self, state: PoolState, queued: QueuedWorkload, kind: int) -> None:
        self.state, self.queued, self.kind, self.ask = state, queued, kind, queued.ask
        self.units = self._units()
        self.counts = (  # for each host: the number of these units that are free now
            state.free_counts_within(kind, availability.time_class(state, queued))
            if state.can_use_shared_counts(queued)
            else availability.host_counts(state, kind, self.free)
        )

    @cached_property
    def free(self) -> Mask:
        """Return the mask of obtainable units that no workload holds.

        It is computed at its first use, because most searches do not need it.
        """
        return intersection(self.units, self.state.holder == NO_HOLDER)

    def _units(self) -> Mask:
        """Return the mask of units that the workload may use if no running work holds them."""
        state, queued = self.state, self.queued
        if queued.reservation is not None:
            return intersection(state.bound_to == queued.reservation, state.usable)
        mask = intersection(state.assignable, state.earmarked_for == 0)
        if queued.id in state.workloads_with_earmarks:
            mask |= intersection(state.assignable, state.earmarked_for == queued.id)
        if state.is_shared(queued.ask):
            mask = intersection(mask, availability.units_without_other_teams_shares(state, queued.team))
        clear = availability.units_clear_of_promises(state, queued)
        return mask if clear is None else intersection(mask, clear)

    def units_after(self, victims: Iterable[int]) -> list[int] | None:
        """Return the units that the workload would get after the victims have stopped.

        None means that the workload still would not fit.
        """
        state, mask = self.state, self.free.copy()
        cpu, memory = state.cpu_free.copy(), state.memory_free.copy()
        for victim in victims:
            units = state.units_of[victim]
            mask[units] = self.units[units]
            for host in {state.hardware.host_list[u] for u in units}:
                cpu[host] += state.running[victim].cpu_milli
                memory[host] += state.running[victim].memory_mib
        return unit_selection.choose_units(
            state, self.ask, self.kind, mask, unit_selection.HostResources(cpu, memory)
        )


class EvictionCandidates:
    """The work that may be evicted for one workload, and the units that each victim frees on each host.

    The cheapest candidate comes first.
    """

    def __init__(self, obtainable: ObtainableUnits, candidates: Ints) -> None:
        """Read the candidates: indices of running workloads, ordered by eviction cost, the lowest first."""
        self.obtainable, self.state, self.model = (
            obtainable,
            obtainable.state,
            obtainable.state.kinds[obtainable.kind].model,
        )
        if len(candidates) <= MAX_READ_ONE_BY_ONE:
            self._read_few(candidates.tolist())
        else:
            self._read_many(candidates)

    def _read_few(self, candidates: list[int]) -> None:
        """Read the candidates with a Python loop, which is faster for few candidates."""
        state, hardware, kind = self.state, self.state.hardware, self.obtainable.kind
        self.slots: dict[int, int] = {}
        self.by_host: dict[int, list[tuple[int, int]]] | None = {}
        self.victims = []
        kinds, hosts, sizes, model_of = (
            hardware.kind_list,
            hardware.host_list,
            hardware.slots_list,
            hardware.model_of_kind,
        )
        usable = self.obtainable.units.tobytes()  # reading single elements of a numpy array is slow
        for victim in candidates:
            count: dict[int, int] = {}
            slots = 0
            for unit in state.units_of[victim]:
                if model_of[kinds[unit]] == model_of[kind]:
                    slots += sizes[unit]
                    if kinds[unit] == kind and usable[unit]:
                        count[hosts[unit]] = count.get(hosts[unit], 0) + 1
            self.slots[victim] = slots
            for host, units in count.items():
                self.by_host.setdefault(host, []).append((victim, units))
            if count:
                self.victims.append(victim)

    def _read_many(self, candidates: Ints) -> None:
        """Read the candidates into arrays, which is faster for many candidates.

        ``host``, ``victim`` and ``count`` have one element for each host of each victim: the victim frees
        ``count`` units on this host. The elements are sorted by host, then by eviction cost.
        """
        state, obtainable = self.state, self.obtainable
        self.by_host = None
        units, position = state.units_by_workload(candidates)
        of_model = state.hardware.model_of_unit[units] == state.hardware.models.index(self.model)
        slots = np.bincount(
            position[of_model], weights=state.slots[units[of_model]], minlength=len(candidates)
        )
        self.slots = dict(zip(candidates.tolist(), slots.astype(int).tolist(), strict=True))
        useful = obtainable.units[units] & (state.kind[units] == obtainable.kind)
        pairs, self.count = np.unique(
            state.host_of[units[useful]] * len(candidates) + position[useful], return_counts=True
        )
        self.host, self.victim = pairs // len(candidates), candidates[pairs % len(candidates)]
        self.victims = candidates[np.unique(position[useful])].tolist()  # victims that free a usable unit

    def on_host(self, host: int) -> list[tuple[int, int]]:
        """Return (victim, units that the victim would free on the host), the cheapest victim first."""
        if self.by_host is not None:
            return self.by_host.get(host, [])
        first, last = self.host.searchsorted((host, host + 1)).tolist()
        return list(zip(self.victim[first:last].tolist(), self.count[first:last].tolist(), strict=True))


def evictable_for(state: PoolState, queued: QueuedWorkload, kind: int, may_reclaim_borrowed: bool) -> Ints:
    """Return the indices of the running work that the workload may evict, ordered by eviction cost.

    A workload may evict evictable work of its own team with lower priority. Both must be in the same
    reservation, or both outside reservations. If ``may_reclaim_borrowed`` is True, it may also evict
    evictable work of other teams that hold more than their guarantee (the slots that a team can always have).
    It never evicts the workload for which it was evicted last. Work is evictable if it is preemptible, is not
    stopping, and has run for the pool's minimum time.
    """
    own = state.team_work_by_eviction_cost(queued.team)
    own = own[state.evictable[own] & (state.run_priority[own] < queued.priority)]
    candidates: Ints = own[state.run_reservation[own] == (queued.reservation or 0)]
    if may_reclaim_borrowed and kind in state.kinds_with_borrowed_work:
        candidates = np.concatenate(
            (candidates, state.evictable_borrowed_work(state.kinds[kind].model, queued.team))
        )
        candidates = candidates[np.lexsort((state.run_id[candidates], state.cost[candidates]))]
    if queued.evicted_by is not None:
        candidates = candidates[state.run_id[candidates] != queued.evicted_by]
    return candidates
