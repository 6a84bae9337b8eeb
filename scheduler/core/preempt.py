"""Who has to make room, when nothing free will do.

Across teams only borrowed work is evicted, and only for work wholly within its team's guarantee; within a team, work of
lower priority. Only preemptible work that ran for the pool's minimum runtime, only whole workloads, and never the one
that this workload had to make room for. Of all such sets the cheapest is wanted, by lost work: the time since each
victim's last checkpoint x its slots. Candidates are taken cheapest first until the ask fits, on the host (or hosts)
where that loses least, and then every victim that proves unnecessary is let off, the dearest first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduler.core import fit
from scheduler.core.board import NOBODY, Board, Mask, both
from scheduler.core.model import Priority, Queued, Running


@dataclass(frozen=True, slots=True)
class RoomMade:
    """Indices of running work that has to go, and the units (free or freed) kept for the ask."""

    victims: list[int]
    units: list[int]


def lost_work(board: Board, victim: int) -> int:
    """Slot-seconds of work that evicting it would throw away."""
    running = board.running[victim]
    since = max(running.started, running.checkpoint_at if running.checkpoint_at is not None else running.started)
    return max(0, board.now - since) * int(board.slots[board.units_of[victim]].sum())


def is_protected(board: Board, running: Running, queued: Queued) -> bool:
    """True for work that policy shields from eviction whoever asks."""
    return (
        not running.preemptible
        or running.stopping
        or board.now < running.started + board.policy.minimum_runtime_seconds
        or running.id == queued.evicted_by
    )


def is_outranked(running: Running, queued: Queued) -> bool:
    """Lower-priority work of the same team, inside the same reservation or outside of any like the ask."""
    return (
        running.team == queued.team and running.priority < queued.priority and running.reservation == queued.reservation
    )


class Search:
    """One search for room: for one workload, on units of one kind."""

    def __init__(self, board: Board, queued: Queued, kind: int) -> None:
        self.board, self.queued, self.kind = board, queued, kind
        self.model = board.kinds[kind].model
        self.need = board.need_slots(queued.ask, kind)
        room = board.ledger.room(queued.team, self.model, self.need, queued.may_borrow and queued.preemptible)
        self.reclaims = queued.reservation is None and room.held + self.need <= room.guaranteed
        self.over_ceiling = 0 if queued.reservation is not None else max(0, room.held + self.need - room.limit)
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
        board, found = self.board, []
        for victim, running in enumerate(board.running):
            if victim in board.evicted or is_protected(board, running, self.queued):
                continue
            if not any(self.obtainable[u] and board.kind[u] == self.kind for u in board.units_of[victim]):
                continue
            if is_outranked(running, self.queued):
                straddles = 0
            elif self.reclaims and running.team != self.queued.team and running.reservation is None:
                excess = min(board.ledger.excess(running.team, board.model_of(u)) for u in board.units_of[victim])
                if excess <= 0:
                    continue
                straddles = int(excess < int(board.slots[board.units_of[victim]].sum()))
            else:
                continue
            found.append((straddles, lost_work(board, victim), running.id, victim))
        found.sort()
        return [victim for _, _, _, victim in found]

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
        return own >= self.over_ceiling and same_user >= self.over_user_cap and self.leaves_spare(victims)

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
        if not self.candidates or not self.fits(self.candidates):
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
        """Victims host by host, each time on the host where the least more is lost."""
        per_host: dict[int, list[int]] = {}
        for victim in self.candidates:
            for host in sorted({int(self.board.host_of[u]) for u in self.board.units_of[victim]}):
                per_host.setdefault(host, []).append(victim)
        free = self.obtainable & (self.board.holder == NOBODY) & (self.board.kind == self.kind)
        free_on = np.bincount(self.board.host_of[free], minlength=len(self.board.hosts))
        labels = self.board.label_mask(self.queued.ask.labels)
        hosts = [h for h in range(len(self.board.hosts)) if labels[h] and (h in per_host or free_on[h])]
        victims: list[int] = []
        used: set[int] = set()
        costs = {host: self._host_cost(host, per_host.get(host, []), victims) for host in hosts}
        for _ in range(self.queued.ask.hosts):
            options = [(c[0], len(c[1]), h) for h, c in costs.items() if c is not None and h not in used]
            if not options:
                return None
            _, _, host = min(options)
            used.add(host)
            chosen = costs[host]
            assert chosen is not None  # options holds only hosts that can be freed
            victims += [v for v in chosen[1] if v not in victims]
            if chosen[1] and len(used) < self.queued.ask.hosts:
                costs = {h: self._host_cost(h, per_host.get(h, []), victims) for h in hosts if h not in used}
        return victims

    def _host_cost(self, host: int, candidates: list[int], gone: list[int]) -> tuple[int, list[int]] | None:
        """(lost work, more victims) that would free enough of one host, or None."""
        chosen: list[int] = []
        if self._host_serves(host, gone):
            return 0, []
        for victim in candidates:
            if victim in gone or not self.is_lawful([*gone, *chosen, victim]):
                continue
            chosen.append(victim)
            if self._host_serves(host, [*gone, *chosen]):
                kept = minimised(self.board, chosen, lambda some: self._host_serves(host, [*gone, *some]))
                return sum(lost_work(self.board, v) for v in kept), kept
        return None

    def _host_serves(self, host: int, victims: list[int]) -> bool:
        """Units, CPU and memory of one host suffice once these are gone."""
        board, ask = self.board, self.queued.ask
        here = [v for v in victims if any(board.host_of[u] == host for u in board.units_of[v])]
        cpu = board.cpu_free[host] + sum(board.running[v].cpu_milli for v in here)
        memory = board.memory_free[host] + sum(board.running[v].memory_mib for v in here)
        if ask.cpu_milli > cpu or ask.memory_mib > memory:
            return False
        first, last = int(board.first_unit[host]), int(board.first_unit[host + 1])
        mask = np.zeros(len(board.units), dtype=np.bool_)
        mask[first:last] = self.obtainable[first:last] & (board.holder[first:last] == NOBODY)
        for victim in here:
            mine = [u for u in board.units_of[victim] if first <= u < last]
            mask[mine] = self.obtainable[mine]
        return fit.pick_on_host(board, ask, self.kind, host, mask) is not None

    def _minimise(self, victims: list[int]) -> list[int]:
        return minimised(
            self.board, victims, lambda some: self.fits(some) and self.is_enough(some) and self.is_lawful(some)
        )


def minimised(board: Board, victims: list[int], suffices: Callable[[list[int]], bool]) -> list[int]:
    """The victims without those that prove unnecessary, trying to let off the dearest first."""
    kept = list(victims)
    for victim in sorted(victims, key=lambda v: (-lost_work(board, v), -board.running[v].id)):
        without = [v for v in kept if v != victim]
        if suffices(without):
            kept = without
    return kept


def may_evict_somebody(board: Board, queued: Queued) -> bool:
    """A quick no for the many that could not evict anybody."""
    lowest = board.lowest_priority.get(queued.team)
    if lowest is not None and lowest < queued.priority:
        return True
    return queued.reservation is None and board.someone_borrows


def make_room(board: Board, queued: Queued, kind: int) -> RoomMade | None:
    """The running work to evict so that a workload can start, or None when there is no lawful way."""
    return Search(board, queued, kind).run()
