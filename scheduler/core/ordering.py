"""Who is looked at first.

Across teams: (1) work inside a reservation, (2) work that others are already making room for, (3) work wholly within
its team's guarantee, (4) work of a team that is below its guarantee, (5) borrowers, the team with the least decayed use
by weight first. Within a team: priority, then the bounded shortest-expected-first order, in which a job's place is its
submit time plus ten times its expected run time, never more than 48 hours extra; a team's oldest job goes first after
24 hours, its oldest over 8 GPUs after 6. Every key ends in the id.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator

from scheduler.core.board import Board
from scheduler.core.model import SLOTS_PER_GPU, Queued

STRETCH = 10
LONGEST_STRETCH = 48 * 3600
OLDEST_AFTER = 24 * 3600
LARGE_OLDEST_AFTER = 6 * 3600
LARGE_UNITS = 8

TeamKey = tuple[int, float, int, int, int]


def place_in_line(queued: Queued) -> int:
    """Submit time plus ten times the expected run time, at most 48 hours."""
    return queued.submitted + min(STRETCH * queued.predicted_seconds, LONGEST_STRETCH)


def within_team(queue: list[Queued], now: int) -> list[Queued]:
    """One team's queue: priority first, then what waited too long, then ``place_in_line``."""
    aged: set[int] = set()
    for priority in {queued.priority for queued in queue}:
        peers = [q for q in queue if q.priority == priority]
        for candidates, after in (
            (peers, OLDEST_AFTER),
            ([q for q in peers if q.ask.total_units > LARGE_UNITS], LARGE_OLDEST_AFTER),
        ):
            oldest = min(candidates, key=lambda q: (q.submitted, q.id), default=None)
            if oldest is not None and now - oldest.submitted > after:
                aged.add(oldest.id)

    def key(queued: Queued) -> tuple[int, int, int, int]:
        if queued.id in aged:
            return -queued.priority, 0, queued.submitted, queued.id
        return -queued.priority, 1, place_in_line(queued), queued.id

    return sorted(queue, key=key)


def expected_slot_seconds(board: Board, queued: Queued) -> int:
    """What a start adds to its team's use as fair share sees it, so that one team does not take a whole cycle."""
    kinds = board.kinds_for(queued.ask)
    slots = board.need_slots(queued.ask, kinds[0]) if kinds else queued.ask.total_units * SLOTS_PER_GPU
    return slots * min(queued.predicted_seconds, board.policy.half_life_seconds)


class Line:
    """The queue of one pool, handed out one by one; a team's turn depends on what it was given so far."""

    def __init__(self, board: Board, eligible: list[Queued], shares: dict[int, float], weights: dict[int, int]) -> None:
        self.board, self.shares, self.weights = board, dict(shares), weights
        by_team: dict[tuple[int, int], list[Queued]] = defaultdict(list)
        for queued in eligible:
            by_team[self._lane(queued), queued.team].append(queued)
        self.lines = {key: iter(within_team(queue, board.now)) for key, queue in by_team.items()}

    def _lane(self, queued: Queued) -> int:
        if queued.reservation is not None:
            return 0
        return 1 if queued.id in self.board.keepers else 2

    def __iter__(self) -> Iterator[Queued]:
        heap: list[tuple[TeamKey, tuple[int, int], Queued]] = []
        for lane_team in sorted(self.lines):
            self._push(heap, lane_team)
        while heap:
            _, lane_team, queued = heapq.heappop(heap)
            yield queued
            self._push(heap, lane_team)

    def _push(self, heap: list[tuple[TeamKey, tuple[int, int], Queued]], lane_team: tuple[int, int]) -> None:
        queued = next(self.lines[lane_team], None)
        if queued is not None:
            heapq.heappush(heap, (self._key(lane_team[0], queued), lane_team, queued))

    def _key(self, lane: int, queued: Queued) -> TeamKey:
        """Lane, the team's claim, fair share among borrowers, place in line, id."""
        claim = self._claim(queued) if lane == 2 else 0
        share = self.shares.get(queued.team, 0.0) if claim == 2 else 0.0
        return lane * 3 + claim, share, place_in_line(queued), queued.team, queued.id

    def _claim(self, queued: Queued) -> int:
        """0 wholly within the guarantee, 1 of a team below its guarantee, 2 borrowing."""
        ledger, best = self.board.ledger, 2
        for kind in self.board.kinds_for(queued.ask):
            model = self.board.kinds[kind].model
            if ledger.is_within_guarantee(queued.team, model, self.board.need_slots(queued.ask, kind)):
                return 0
            if ledger.is_under_guarantee(queued.team, model):
                best = 1
        return best

    def started(self, queued: Queued) -> None:
        """Tell the line that a workload was given its units."""
        added = expected_slot_seconds(self.board, queued) / max(1, self.weights.get(queued.team, 1))
        self.shares[queued.team] = self.shares.get(queued.team, 0.0) + added
