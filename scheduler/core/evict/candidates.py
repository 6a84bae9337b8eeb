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

MAX_READ_SINGLY = 64  # candidates that are sooner read one by one than as arrays


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
            board.free_counts_within(kind, availability.time_class(board, queued))
            if board.can_use_shared_counts(queued)
            else availability.host_counts(board, kind, self.free)
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
            mask = intersection(mask, availability.units_without_other_teams_shares(board, queued.team))
        in_time = availability.units_clear_of_promises(board, queued)
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
        return unit_selection.choose_units(
            board, self.ask, self.kind, mask, unit_selection.HostResources(cpu, memory)
        )


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
        kinds, hosts, sizes, model_of = (
            ground.kind_list,
            ground.host_list,
            ground.slots_list,
            ground.model_of_kind,
        )
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
        pairs, self.count = np.unique(
            board.host_of[units[useful]] * len(found) + owner[useful], return_counts=True
        )
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
