"""When room can be made by work that may not be told to go yet, because it has not run for the pool's minimum.

Who is guaranteed what others borrowed a moment ago would else be told when the borrowers are expected to end: hours, where it is
minutes. The board is looked at as it will stand when all that runs is old enough, and room is made there by the same search.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from scheduler.core.arrays import intersection
from scheduler.core.evict import candidates, victim_search
from scheduler.core.fit.quota_limits import kinds_within_limits
from scheduler.core.model.plan import Eviction
from scheduler.core.model.pool_state import PoolState, eviction_lead_seconds
from scheduler.core.model.running_work import PREEMPTIBLE, STARTED, STOPPING
from scheduler.core.model.snapshot import QueuedWorkload
from scheduler.core.reasons import ReasonCode


@dataclass(frozen=True, slots=True)
class FutureRoom:
    """Work (ids) that can be told to go at ``told_at``, and when the units will have been given back at the latest."""

    victims: tuple[int, ...]
    told_at: int
    start: int


class FutureEvictions:
    """Room that those who wait can have made for them later in this cycle's terms, one after another in their order."""

    def __init__(self, board: PoolState) -> None:
        self.board = board
        self.evictable_from = board.table[STARTED] + board.policy.minimum_runtime_seconds
        young = (
            (board.table[PREEMPTIBLE] == 1) & (board.table[STOPPING] == 0) & (self.evictable_from > board.now)
        )
        self.has_protected_work = bool(young.any())
        self._future_state: PoolState | None = None

    def room_for(self, queued: QueuedWorkload) -> FutureRoom | None:
        """The first room that can be made for it, counted in for those behind it. None when nobody has only to grow older."""
        if not self.has_protected_work or queued.reservation is not None:
            return None
        then = self._state_then()
        kinds = [
            kind
            for kind in victim_search.kinds_to_try_eviction_on(then, queued)
            if kind in kinds_within_limits(self.board, queued)
        ]
        ages = np.unique(
            self.evictable_from[then.evictable & (self.evictable_from > self.board.now)]
        ).tolist()
        if not ages or self._victims_at(queued, kinds, ages[-1]) is None:
            return None
        # Room that can be made at one moment can be made later, too: so the first moment is found by halves.
        told_at = ages[
            bisect_left(
                ages, True, hi=len(ages) - 1, key=lambda age: self._victims_at(queued, kinds, age) is not None
            )
        ]
        found = self._victims_at(queued, kinds, told_at)
        assert found is not None
        kind, room = found
        for victim in room.victims:
            running = then.running[victim]
            then.evict(
                victim, Eviction(running.id, queued.id, None, ReasonCode.EVICTED_FOR_GUARANTEE, told_at, ())
            )
        then.keep(queued, room.units, room.victims)
        then.ledger.add_held_slots(
            queued.team, then.kinds[kind].model, then.slots_needed(queued.ask, kind), queued.preemptible
        )
        return FutureRoom(
            tuple(sorted(then.running[victim].id for victim in room.victims)),
            told_at,
            told_at + eviction_lead_seconds(self.board),
        )

    def _victims_at(
        self, queued: QueuedWorkload, kinds: list[int], at: int
    ) -> tuple[int, candidates.EvictionChoice] | None:
        """The room that can be made by those who are old enough at a moment, and of which kind."""
        then, all_of_them = self._state_then(), self._state_then().evictable
        then.evictable = intersection(all_of_them, self.evictable_from <= at)
        try:
            rooms = ((kind, victim_search.find_victims(then, queued, kind)) for kind in kinds)
            return next(((kind, room) for kind, room in rooms if room is not None and room.victims), None)
        finally:
            then.evictable = all_of_them

    def _state_then(self) -> PoolState:
        """The board when all that runs now is old enough, less what was given or kept in this cycle."""
        if self._future_state is None:
            self._future_state = PoolState(
                self.board.facts, self.board.pool, self.board.now + self.board.policy.minimum_runtime_seconds
            )
            self._future_state.copy_promises_from(self.board)
        gone = self._future_state.free & ~self.board.free
        self._future_state.mark_taken(np.flatnonzero(gone).tolist(), self.board)
        return self._future_state
