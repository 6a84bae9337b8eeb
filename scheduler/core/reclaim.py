"""When room can be made by work that may not be told to go yet, because it has not run for the pool's minimum.

Who is guaranteed what others borrowed a moment ago would else be told when the borrowers are expected to end: hours, where it is
minutes. The board is looked at as it will stand when all that runs is old enough, and room is made there by the same search.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from scheduler.core import preempt
from scheduler.core.board import Board, both
from scheduler.core.limits import granted_kinds
from scheduler.core.model import Eviction, Queued
from scheduler.core.occupancy import PREEMPTIBLE, STARTED, STOPPING
from scheduler.core.reasons import Code
from scheduler.core.timeline import lead_seconds


@dataclass(frozen=True, slots=True)
class RoomLater:
    """Work (ids) that can be told to go at ``told_at``, and when the units will have been given back at the latest."""

    victims: tuple[int, ...]
    told_at: int
    start: int


class Reclaim:
    """Room that those who wait can have made for them later in this cycle's terms, one after another in their order."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.old_from = board.table[STARTED] + board.policy.minimum_runtime_seconds
        young = (board.table[PREEMPTIBLE] == 1) & (board.table[STOPPING] == 0) & (self.old_from > board.now)
        self.somebody_is_young = bool(young.any())
        self._then: Board | None = None

    def room_for(self, queued: Queued) -> RoomLater | None:
        """The first room that can be made for it, counted in for those behind it. None when nobody has only to grow older."""
        if not self.somebody_is_young or queued.reservation is not None:
            return None
        then = self._board_then()
        kinds = [kind for kind in preempt.kinds_to_evict_on(then, queued) if kind in granted_kinds(self.board, queued)]
        ages = np.unique(self.old_from[then.evictable & (self.old_from > self.board.now)]).tolist()
        if not ages or self._made(queued, kinds, ages[-1]) is None:
            return None
        # Room that can be made at one moment can be made later, too: so the first moment is found by halves.
        told_at = ages[bisect_left(ages, True, hi=len(ages) - 1, key=lambda age: self._made(queued, kinds, age) is not None)]
        found = self._made(queued, kinds, told_at)
        assert found is not None
        kind, room = found
        for victim in room.victims:
            running = then.running[victim]
            then.evict(victim, Eviction(running.id, queued.id, None, Code.EVICTED_FOR_GUARANTEE, told_at, ()))
        then.keep(queued, room.units, room.victims)
        then.ledger.give(queued.team, then.kinds[kind].model, then.need_slots(queued.ask, kind), queued.preemptible)
        return RoomLater(
            tuple(sorted(then.running[victim].id for victim in room.victims)), told_at, told_at + lead_seconds(self.board)
        )

    def _made(self, queued: Queued, kinds: list[int], at: int) -> tuple[int, preempt.RoomMade] | None:
        """The room that can be made by those who are old enough at a moment, and of which kind."""
        then, all_of_them = self._board_then(), self._board_then().evictable
        then.evictable = both(all_of_them, self.old_from <= at)
        try:
            rooms = ((kind, preempt.make_room(then, queued, kind)) for kind in kinds)
            return next(((kind, room) for kind, room in rooms if room is not None and room.victims), None)
        finally:
            then.evictable = all_of_them

    def _board_then(self) -> Board:
        """The board when all that runs now is old enough, less what was given or kept in this cycle."""
        if self._then is None:
            self._then = Board(self.board.facts, self.board.pool, self.board.now + self.board.policy.minimum_runtime_seconds)
            self._then.as_promised_on(self.board)
        gone = self._then.free & ~self.board.free
        self._then.take_away(np.flatnonzero(gone).tolist(), self.board)
        return self._then
