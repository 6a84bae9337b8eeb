"""Find the first time at which evictions would make room for a waiting workload.

Running work is protected from eviction until it has run for the pool's minimum runtime. Example: other teams
have just borrowed units that team A is guaranteed, and the minimum runtime is 5 minutes. The next workload of
team A can start by evictions in about 5 minutes. Without this module, its expected start would be the end of
the other teams' work, perhaps in hours. Therefore the search for victims (workloads to evict) runs again, on
a pool state in which no work is protected any more.
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
    """Future evictions that make room for a workload.

    ``victims`` are the ids of the workloads that can be evicted at the time ``evict_at``. Their units are
    free at the time ``start``.
    """

    victims: tuple[int, ...]
    evict_at: int
    start: int


class FutureEvictions:
    """The search for future evictions. It runs for one refused workload after another, in queue order."""

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self.evictable_from = state.table[STARTED] + state.policy.minimum_runtime_seconds
        protected = (
            (state.table[PREEMPTIBLE] == 1) & (state.table[STOPPING] == 0) & (self.evictable_from > state.now)
        )
        self.has_protected_work = bool(protected.any())
        self._future_state: PoolState | None = None

    def room_for(self, queued: QueuedWorkload) -> FutureRoom | None:
        """Return the earliest future evictions that make room for the workload, or None if there are none.

        The result is recorded, so that searches for later workloads use other victims and other units.
        """
        if not self.has_protected_work or queued.reservation is not None:
            return None
        future_state = self._state_then()
        kinds = [
            kind
            for kind in victim_search.kinds_to_try_eviction_on(future_state, queued)
            if kind in kinds_within_limits(self.state, queued)
        ]
        times = np.unique(
            self.evictable_from[future_state.evictable & (self.evictable_from > self.state.now)]
        ).tolist()
        if not times or self._victims_at(queued, kinds, times[-1]) is None:
            return None
        # Evictions that are possible at one time are also possible at any later time. So bisection finds the
        # first time.
        evict_at = times[
            bisect_left(
                times,
                True,
                hi=len(times) - 1,
                key=lambda time: self._victims_at(queued, kinds, time) is not None,
            )
        ]
        kind_and_choice = self._victims_at(queued, kinds, evict_at)
        assert kind_and_choice is not None
        kind, choice = kind_and_choice
        for victim in choice.victims:
            running = future_state.running[victim]
            future_state.evict_workload(
                victim, Eviction(running.id, queued.id, None, ReasonCode.EVICTED_FOR_GUARANTEE, evict_at, ())
            )
        future_state.earmark(queued, choice.units, choice.victims)
        future_state.ledger.add_held_slots(
            queued.team,
            future_state.kinds[kind].model,
            future_state.slots_needed(queued.ask, kind),
            queued.preemptible,
        )
        return FutureRoom(
            tuple(sorted(future_state.running[victim].id for victim in choice.victims)),
            evict_at,
            evict_at + eviction_lead_seconds(self.state),
        )

    def _victims_at(
        self, queued: QueuedWorkload, kinds: list[int], at: int
    ) -> tuple[int, candidates.EvictionChoice] | None:
        """Return (kind, victims and units) of the evictions that are possible at a time, or None."""
        future_state, all_evictable = self._state_then(), self._state_then().evictable
        future_state.evictable = intersection(all_evictable, self.evictable_from <= at)
        try:
            choices = ((kind, victim_search.find_victims(future_state, queued, kind)) for kind in kinds)
            return next(
                ((kind, choice) for kind, choice in choices if choice is not None and choice.victims), None
            )
        finally:
            future_state.evictable = all_evictable

    def _state_then(self) -> PoolState:
        """Return the pool's state at a time at which no running work is protected any more.

        Units that were taken so far in this cycle (run of the planner) are not free in this state.
        """
        if self._future_state is None:
            self._future_state = PoolState(
                self.state.pool_snapshot,
                self.state.now + self.state.policy.minimum_runtime_seconds,
            )
            self._future_state.copy_promises_from(self.state)
        taken = self._future_state.free & ~self.state.free
        self._future_state.mark_taken(np.flatnonzero(taken).tolist(), self.state)
        return self._future_state
