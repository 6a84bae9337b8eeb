"""Compute how many guaranteed slots teams would lose if a reservation took certain units at its start.

A team's guarantee is the number of slots that it can always have. Slots above it are borrowed. The team
borrows as a whole: any of its workloads may be evicted until the team holds only its guarantee. Example: a
team with a guarantee of 8 GPUs runs 3 workloads with 4 GPUs each. One of them, no matter which, can be
evicted without loss of guaranteed slots. Evicting two costs 4 guaranteed GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from scheduler.core.arrays import Ints
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.running_work import NO_HOLDER
from scheduler.core.model.snapshot import PoolKind, ReservationInfo

# The cost of losing one guaranteed unit. It is larger than the cost of all lost work on a whole host.
GUARANTEED_UNIT_COST = 1 << 32


def preemptible_holders(state: PoolState, reservation: ReservationInfo, units: Iterable[int]) -> list[int]:
    """Return the indices of evictable work that would still hold ``units`` at a reservation's start."""
    victims = []
    for victim in sorted({int(state.holder[u]) for u in units} - {NO_HOLDER}):
        if state.evictable[victim] and state.running[victim].until > reservation.start:
            victims.append(victim)
    return victims


class GuaranteedWork:
    """The guaranteed slots that teams lose if work is evicted for one reservation.

    Only slots of one GPU model count: the model of ``kind``.
    """

    def __init__(self, state: PoolState, reservation: ReservationInfo, kind: int) -> None:
        self.state, self.reservation, self.kind = state, reservation, kind

    def slots_lost(self, units: Iterable[int]) -> int:
        """Return the guaranteed slots that teams lose if their work on these units is evicted."""
        state = self.state
        by_team: dict[int, int] = defaultdict(int)
        for victim in preemptible_holders(state, self.reservation, units):
            if state.running[victim].reservation is None:
                by_team[state.running[victim].team] += int(state.run_slots[victim])
        return sum(max(0, slots - self._borrowed_slots(team)) for team, slots in by_team.items())

    def _borrowed_slots(self, team: int) -> int:
        """Return the slots that a team will borrow once the reservation has started.

        The reservation uses a part of its own team's guarantee, so that team then borrows more.
        """
        state = self.state
        if state.pool.kind is PoolKind.STATIC and team == state.pool.team:
            return 0
        excess = state.ledger.reclaimable_slots(team, state.kinds[self.kind].model)
        if team == self.reservation.team:
            excess += state.slots_needed(self.reservation.ask, self.kind)
        return max(0, excess)

    def unit_costs(self, units: Ints) -> tuple[Ints, Ints]:
        """Return two estimates, for each unit, of the cost of evicting the workload that holds it.

        Only the guaranteed slots that the team loses have a cost. A workload's cost is spread evenly over its
        units. The first estimate assumes that each workload is its team's only victim. It is too low if
        several victims of a team together hold more slots than the team borrows. The second estimate goes
        through a team's workloads from the cheapest to the most expensive to evict. It counts them as
        borrowed until the borrowed slots are used up, and as guaranteed from then on.
        """
        state = self.state
        alone: Ints = np.zeros(len(state.units), dtype=np.int64)
        in_turn: Ints = np.zeros(len(state.units), dtype=np.int64)
        slots_before: dict[int, int] = defaultdict(int)
        victims = preemptible_holders(state, self.reservation, units.tolist())
        for victim in sorted(victims, key=lambda v: (int(state.cost[v]), state.running[v].id)):
            running, slots = state.running[victim], int(state.run_slots[victim])
            if running.reservation is not None:
                continue
            borrowed, before = self._borrowed_slots(running.team), slots_before[running.team]
            slots_before[running.team] += slots
            held = state.units_of[victim]
            alone[held] = GUARANTEED_UNIT_COST * max(0, slots - borrowed) // slots
            in_turn[held] = GUARANTEED_UNIT_COST * max(0, before + slots - max(before, borrowed)) // slots
        return alone, in_turn
