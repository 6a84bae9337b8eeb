"""Who has to make room, when nothing free will do.

Across teams only borrowed work is evicted, and only for work wholly within its team's guarantee; within a team, work of
lower priority. Only preemptible work that ran for the pool's minimum runtime, only whole workloads, and never the one
that this workload had to make room for. Of all such sets the cheapest is wanted. A victim costs the time since its last
checkpoint x its slots, and half an hour x its slots for each time it had to go before: so victims take turns, and nobody
is told to go over and over because it is small, young or saves often. Candidates are taken cheapest first until the ask
fits, on the host (or hosts) where that costs least, and then every victim that proves unnecessary is let off, the
dearest first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduler.core import fit
from scheduler.core.board import NOBODY, Board, Mask, both
from scheduler.core.model import Priority, Queued


@dataclass(frozen=True, slots=True)
class RoomMade:
    """Indices of running work that has to go, and the units (free or freed) kept for the ask."""

    victims: list[int]
    units: list[int]


class Search:
    """One search for room: for one workload, on units of one kind."""

    def __init__(self, board: Board, queued: Queued, kind: int) -> None:
        self.board, self.queued, self.kind = board, queued, kind
        self.model = board.kinds[kind].model
        self.need = board.need_slots(queued.ask, kind)
        outside = queued.reservation is None
        room = board.ledger.room(queued.team, self.model, self.need, queued.preemptible, queued.may_borrow)
        self.reclaims = outside and board.ledger.is_within_guarantee(queued.team, self.model, self.need)
        self.over_limit = room.over if outside else 0
        self.hopeless = outside and room.firm  # what fills its team's guarantee may not be evicted
        self.over_user_cap = max(0, self.need - board.ledger.user_cap_left(queued.user))
        self.obtainable = self._obtainable()
        self.candidates = self._candidates()

    def _obtainable(self) -> Mask:
        """Units the ask could use if nobody was on them."""
        board, queued = self.board, self.queued
        if queued.reservation is not None:
            return both(board.bound == queued.reservation, board.usable)
        mask = both(board.usable & (board.bound == 0), (board.kept == 0) | (board.kept == queued.id))
        if board.is_shared(queued.ask):
            mask = both(mask, fit.own_shares(board, queued.team))
        in_time = fit.in_time(board, queued)
        return mask if in_time is None else both(mask, in_time)

    def _candidates(self) -> list[int]:
        """Possible victims, those wholly borrowed before those that are partly guaranteed, then cheapest first."""
        board, queued = self.board, self.queued
        units = np.flatnonzero(self.obtainable & (board.kind == self.kind) & (board.holder >= 0))
        holders = board.holder[units]
        useful = np.zeros(len(board.running), dtype=np.bool_)
        useful[holders[holders < len(board.running)]] = True
        useful &= board.evictable & (board.run_id != (queued.evicted_by if queued.evicted_by is not None else NOBODY))
        own = board.run_team == queued.team
        outranked = own & (board.run_priority < queued.priority) & (board.run_reservation == (queued.reservation or 0))
        excess = np.zeros(len(board.running), dtype=np.int64)
        if self.reclaims:
            by_team = {team: board.ledger.excess(team, self.model) for team in board.of_team}
            excess = np.array([by_team[int(team)] for team in board.run_team], dtype=np.int64)
        borrowed = ~own & (board.run_reservation == 0) & (excess > 0)
        found = np.flatnonzero(useful & (outranked | borrowed))
        straddles = ~outranked[found] & (excess[found] < board.run_slots[found])
        order = np.lexsort((board.run_id[found], board.cost[found], straddles))
        return [int(victim) for victim in found[order]]

    # -- what a set of victims has to satisfy -----------------------------------------------------------------------

    def freed(self, victims: list[int]) -> Mask:
        """Units the ask could take once these are gone."""
        mask = both(self.obtainable, self.board.holder == NOBODY)
        for victim in victims:
            units = self.board.units_of[victim]
            mask[units] = self.obtainable[units]
        return mask

    def is_lawful(self, victims: list[int]) -> bool:
        """Each team other than the ask's still has something borrowed when the last of its victims is taken."""
        by_team: dict[int, list[int]] = {}
        for victim in victims:
            if self.board.running[victim].team != self.queued.team:
                by_team.setdefault(self.board.running[victim].team, []).append(self._slots(victim))
        return all(
            sum(slots) - max(slots) < self.board.ledger.excess(team, self.model) for team, slots in by_team.items()
        )

    def is_enough(self, victims: list[int]) -> bool:
        """Quota, user cap and the pool's spare capacity once these are gone."""
        own = sum(self._slots(v) for v in victims if self.board.running[v].team == self.queued.team)
        same_user = sum(self._slots(v) for v in victims if self.board.running[v].user == self.queued.user)
        return own >= self.over_limit and same_user >= self.over_user_cap and self.leaves_spare(victims)

    def leaves_spare(self, victims: list[int]) -> bool:
        board = self.board
        spare = board.policy.spare_slots
        if spare == 0 or self.queued.priority is Priority.CRITICAL or self.queued.reservation is not None:
            return True
        freed = sum(int(board.slots[board.units_of[v]].sum()) for v in victims)
        return board.free_slots + freed - self.need >= spare

    def _slots(self, victim: int) -> int:
        units = self.board.units_of[victim]
        return sum(int(self.board.slots[u]) for u in units if self.board.model_of(u) == self.model)

    def fits(self, victims: list[int]) -> bool:
        return self.units_after(victims) is not None

    def units_after(self, victims: list[int]) -> list[int] | None:
        """The units the ask would get once these are gone."""
        board = self.board
        cpu, memory = board.cpu_free.copy(), board.memory_free.copy()
        for victim in victims:
            for host in {int(board.host_of[u]) for u in board.units_of[victim]}:
                cpu[host] += board.running[victim].cpu_milli
                memory[host] += board.running[victim].memory_mib
        return fit.choose(board, self.queued.ask, self.kind, self.freed(victims), fit.Beside(cpu, memory))

    # -- the search ---------------------------------------------------------------------------------------------------

    def run(self) -> RoomMade | None:
        """The cheapest lawful set found, or None when no set would do."""
        if self.hopeless or not self.candidates or not self.fits(self.candidates):
            return None
        victims = self._spread_over_hosts()
        if victims is None:
            return None
        for candidate in self.candidates:  # quota, cap or spare may need more to go than the units themselves do
            if self.is_enough(victims):
                break
            if candidate not in victims and self.is_lawful([*victims, candidate]):
                victims.append(candidate)
        if not self.is_enough(victims):
            return None
        victims = self._minimise(victims)
        units = self.units_after(victims)
        return None if units is None else RoomMade(victims, units)

    def _spread_over_hosts(self) -> list[int] | None:
        """Victims host by host, each time on the host where the least more is to be paid.

        Hosts wait in a heap under a bound that their true cost can't be below (the cheapest victim on them), and are
        judged only when they come up: on a large pool most of them never are.
        """
        self._read_hosts()
        victims: list[int] = []
        heap: list[tuple[int, int, int, list[int] | None]] = [
            (self._least(host, victims), 0, host, None) for host in self._possible_hosts()
        ]
        heapq.heapify(heap)
        left = self.queued.ask.hosts
        done: set[int] = set()
        while left and heap:
            _, _, host, chosen = heapq.heappop(heap)
            if host in done:
                continue
            if chosen is None or not self._still_right(host, chosen, victims):
                judged = self._host_cost(host, victims)
                if judged is not None:
                    heapq.heappush(heap, (judged[0], len(judged[1]), host, judged[1]))
                continue
            done.add(host)
            left -= 1
            victims += [v for v in chosen if v not in victims]
            for other in {h for v in chosen for h in self.hosts_of[v]} - done:  # freed there, too
                heapq.heappush(heap, (self._least(other, victims), 0, other, None))
        return None if left else victims

    def _read_hosts(self) -> None:
        """Per host: units free for the ask, and those that each candidate would free."""
        board = self.board
        self.free_on: dict[int, list[int]] = {}
        free = self.obtainable & (board.holder == NOBODY) & (board.kind == self.kind)
        for unit in (int(u) for u in np.flatnonzero(free)):
            self.free_on.setdefault(int(board.host_of[unit]), []).append(unit)
        self.held_on: dict[int, dict[int, list[int]]] = {}  # host -> victim -> units
        self.hosts_of: dict[int, list[int]] = {}
        for victim in self.candidates:
            for unit in board.units_of[victim]:
                if self.obtainable[unit] and board.kind[unit] == self.kind:
                    host = int(board.host_of[unit])
                    self.held_on.setdefault(host, {}).setdefault(victim, []).append(unit)
            self.hosts_of[victim] = sorted({int(board.host_of[u]) for u in board.units_of[victim]})

    def _possible_hosts(self) -> list[int]:
        """Hosts with enough units if every candidate was gone."""
        labels, need = self.board.label_mask(self.queued.ask.labels), self.queued.ask.units
        found = []
        for host in sorted({*self.free_on, *self.held_on}):
            most = len(self.free_on.get(host, ())) + sum(map(len, self.held_on.get(host, {}).values()))
            if labels[host] and most >= need:
                found.append(host)
        return found

    def _least(self, host: int, gone: list[int]) -> int:
        """A bound: nothing more need go on a host that serves already, else at least its cheapest victim."""
        if self._host_serves(host, gone):
            return 0
        return min((int(self.board.cost[v]) for v in self.held_on.get(host, {}) if v not in gone), default=0)

    def _still_right(self, host: int, chosen: list[int], victims: list[int]) -> bool:
        """Was this host's choice made with the victims that are chosen by now?"""
        return not victims or (self._host_serves(host, [*victims, *chosen]) and self.is_lawful([*victims, *chosen]))

    def _host_cost(self, host: int, gone: list[int]) -> tuple[int, list[int]] | None:
        """(cost, more victims) that would free enough of one host, or None."""
        if self._host_serves(host, gone):
            return 0, []
        chosen: list[int] = []
        for victim in self.held_on.get(host, {}):  # in the order of the candidates
            if victim in gone or not self.is_lawful([*gone, *chosen, victim]):
                continue
            chosen.append(victim)
            if self._host_serves(host, [*gone, *chosen]):
                kept = minimised(self.board, chosen, lambda some: self._host_serves(host, [*gone, *some]))
                return sum(int(self.board.cost[v]) for v in kept), kept
        return None

    def _host_serves(self, host: int, victims: list[int]) -> bool:
        """Units, CPU and memory of one host suffice once these are gone."""
        board, ask, held = self.board, self.queued.ask, self.held_on.get(host, {})
        here = [v for v in victims if v in held]
        free = self.free_on.get(host, [])
        if len(free) + sum(len(held[v]) for v in here) < ask.units:
            return False
        if ask.cpu_milli > board.cpu_free[host] + sum(board.running[v].cpu_milli for v in here):
            return False
        if ask.memory_mib > board.memory_free[host] + sum(board.running[v].memory_mib for v in here):
            return False
        if not ask.nvlink:
            return True
        return fit.pick(board, ask, sorted([*free, *(u for v in here for u in held[v])])) is not None

    def _minimise(self, victims: list[int]) -> list[int]:
        return minimised(
            self.board, victims, lambda some: self.fits(some) and self.is_enough(some) and self.is_lawful(some)
        )


def minimised(board: Board, victims: list[int], suffices: Callable[[list[int]], bool]) -> list[int]:
    """The victims without those that prove unnecessary, trying to let off the dearest first."""
    kept = list(victims)
    for victim in sorted(victims, key=lambda v: (-int(board.cost[v]), -board.running[v].id)):
        without = [v for v in kept if v != victim]
        if suffices(without):
            kept = without
    return kept


def may_evict_somebody(board: Board, queued: Queued, kind: int) -> bool:
    """A quick no for the many that could not evict anybody."""
    lowest = board.lowest_priority.get(queued.team)
    if lowest is not None and lowest < queued.priority:
        return True
    if queued.reservation is not None or not board.someone_borrows:
        return False
    need = board.need_slots(queued.ask, kind)
    return board.ledger.is_within_guarantee(queued.team, board.kinds[kind].model, need)


def make_room(board: Board, queued: Queued, kind: int) -> RoomMade | None:
    """The running work to evict so that a workload can start, or None when there is no lawful way."""
    return Search(board, queued, kind).run()
