"""Decide the order of turns in one pool.

A cycle is one run of the planner. The turn of a workload is the point of the cycle at which the planner
decides about it. A team's guarantee is the number of slots that it can always have; the team borrows if it
holds more. Across teams, the order is:

1. work inside a reservation,
2. work for which the planner has evicted other work,
3. work that is wholly within its team's guarantee,
4. work that is partly borrowed, of a team below its guarantee,
5. work that is wholly borrowed. Here the team with the lowest (decayed use / weight) comes first. Decayed use
   is past use that halves with every half-life.

Within a team, the order is by priority, then by effective submit time. This is the submit time plus ten times
the predicted runtime, but at most 48 hours later. So short jobs come first, and a long job is overtaken only
for a limited time. Among a team's jobs of one priority, the oldest job comes first when it has waited for
more than 24 hours. The oldest job with more than 8 GPUs comes first when it has waited for more than 6 hours.
If all else is equal, the lower id comes first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from scheduler.core.model.quota_ledger import BELOW_GUARANTEE, BORROWING, QUOTA_TIERS, WITHIN_GUARANTEE
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import QueuedWorkload
from scheduler.core.model.waiting_queue import EquivalenceClass, effective_submit_time
from scheduler.core.queue.admission import EligibleWork
from scheduler.core.queue.team_queue import SkipScope, TeamQueue, UnschedulableClasses
from scheduler.core.queue.turn import (
    BORROWER_TIER,
    EVICTION_IN_PROGRESS,
    INSIDE_RESERVATION,
    LANES,
    ORDINARY,
    QueueTurn,
    TeamQueueKey,
    TurnKey,
)

if TYPE_CHECKING:
    from scheduler.core.model.pool_state import PoolState


def expected_slot_seconds(state: PoolState, queued: QueuedWorkload) -> int:
    """Return the slot-seconds that are added to a team's use in this cycle when its workload starts.

    Without this addition, the team with the lowest use could take all free units of the cycle.
    """
    kinds = state.kinds_for(queued.ask)
    slots = state.slots_needed(queued.ask, kinds[0]) if kinds else queued.ask.total_units * SLOTS_PER_GPU
    return slots * min(queued.predicted_seconds, state.policy.half_life_seconds)


class TurnOrder:
    """The order in which the planner decides about the waiting workloads of one pool.

    The order is computed step by step, because each start changes the slots and the use of its team.
    """

    def __init__(
        self,
        state: PoolState,
        eligible: EligibleWork,
        recorded_turns: dict[int, QueueTurn] | None = None,
    ) -> None:
        """Put the eligible work in the queues of its teams.

        If ``recorded_turns`` is given, the turn of each workload is stored in it under the workload's id.
        """
        pool, classes = state.pool_snapshot, eligible.classes
        self.state, self.weights = state, pool.weights
        self.decayed_use_by_weight = dict(pool.decayed_use_by_weight)
        self.unschedulable = UnschedulableClasses(state)
        self.recorded_turns = recorded_turns
        self.group: EquivalenceClass | None = None  # the class of the workload whose turn it is now
        self.requeued = False  # True if the workload whose turn it is now gets a second turn later
        self._turns = 0
        self._turn_key: TurnKey = (0, 0.0, False, 0, 0, 0)
        self._quota_tiers: dict[tuple[int, int], tuple[int, int]] = {}
        by_team: dict[tuple[int, int], list[EquivalenceClass]] = defaultdict(list)
        for group in classes:
            by_team[ORDINARY, group.first.team].append(group)
        with_earmarks = pool.queue.workloads_in(classes, state.workloads_with_earmarks)
        for queued in (*eligible.individuals, *with_earmarks):
            alone = EquivalenceClass()
            alone.add(queued)
            by_team[self._lane(queued), queued.team].append(alone)
        nothing: AbstractSet[int] = frozenset()
        self.team_queues: dict[TeamQueueKey, TeamQueue] = {}
        for (lane, team), members in by_team.items():
            parts = self._split_by_models(members) if lane == ORDINARY else [members]
            for number, part in enumerate(parts):
                excluded = state.workloads_with_earmarks if lane == ORDINARY else nothing
                self.team_queues[lane, team, number] = TeamQueue(
                    part, state.now, excluded, self.unschedulable
                )

    def _split_by_models(self, groups: list[EquivalenceClass]) -> list[list[EquivalenceClass]]:
        """Split a team's classes of workloads into parts that have no GPU model in common.

        Each part becomes a queue of its own. So a workload that would borrow one model does not delay work
        for which the team has a guarantee of another model. There is only one part if the pool has a cap on
        the slots of one user, because the cap covers all models together.
        """
        if len(self.state.hardware.models) == 1 or self.state.policy.max_slots_per_user is not None:
            return [groups]
        models = [self._models(group.first) for group in groups]
        parts: list[int] = []
        for mask in sorted(set(models)):
            joined = [part for part in parts if part & mask]
            parts = [part for part in parts if not part & mask]
            # The masks in ``joined`` have no bit in common, so their sum is their union.
            parts.append(mask | sum(joined))
        if len(parts) == 1:
            return [groups]
        classes: list[list[EquivalenceClass]] = [[] for _ in parts]
        for group, mask in zip(groups, models):
            classes[next(number for number, part in enumerate(parts) if mask & part == mask)].append(group)
        return classes

    def _models(self, queued: QueuedWorkload) -> int:
        """Return the models that serve the ask as a bit mask: bit ``i`` is set for model number ``i``."""
        of_kind, mask = self.state.hardware.model_of_kind, 0
        for kind in self.state.kinds_for(queued.ask):
            mask |= 1 << of_kind[kind]
        return mask

    def _lane(self, queued: QueuedWorkload) -> int:
        """Return the lane of a workload (see ``LANES``)."""
        if queued.reservation is not None:
            return INSIDE_RESERVATION
        return EVICTION_IN_PROGRESS if queued.id in self.state.workloads_with_earmarks else ORDINARY

    def __iter__(self) -> Iterator[QueuedWorkload]:
        """Yield each workload when its turn comes. A requeued workload is yielded a second time."""
        # The keys of a lane are computed after the lanes before it are finished, because the units that
        # these lanes assign change the keys.
        for lane in LANES:
            heap: list[tuple[TurnKey, TeamQueueKey, QueuedWorkload, EquivalenceClass]] = []
            for team_queue in sorted(self.team_queues):
                if team_queue[0] == lane:
                    self._push_next(heap, team_queue)
            while heap:
                key, team_queue, queued, group = heapq.heappop(heap)
                used = self.decayed_use_by_weight.get(queued.team, 0.0)
                if key[0] == BORROWER_TIER and key[1] < used:
                    # Another queue of the same team has got units since this key was computed.
                    heapq.heappush(heap, ((key[0], used, *key[2:]), team_queue, queued, group))
                    continue
                self.group, self.requeued, self._turn_key = group, False, key
                self._turns += 1
                if self.recorded_turns is not None:
                    self.recorded_turns[queued.id] = QueueTurn(
                        self._turns, queued, key, not key[2], team_queue
                    )
                yield queued
                if self.requeued:
                    later = lane * len(QUOTA_TIERS) + BELOW_GUARANTEE
                    heapq.heappush(heap, ((later, *key[1:]), team_queue, queued, group))
                else:
                    self._push_next(heap, team_queue)

    def _push_next(
        self,
        heap: list[tuple[TurnKey, TeamQueueKey, QueuedWorkload, EquivalenceClass]],
        team_queue: TeamQueueKey,
    ) -> None:
        """Push the next workload of a team's queue on the heap."""
        turn = self.team_queues[team_queue].next()
        if turn is not None:
            queued, group, waited_too_long, skipped = turn
            # A workload must not get a lower key than the workloads that were skipped before it in its team's
            # queue. Otherwise skipping would move it ahead of other teams.
            key = self._key(team_queue[0], queued, waited_too_long)
            if skipped:
                key = max(key, *(self._key(team_queue[0], workload, False) for workload in skipped))
            heapq.heappush(heap, (key, team_queue, queued, group))

    def _key(self, lane: int, queued: QueuedWorkload, waited_too_long: bool) -> TurnKey:
        """Return the sort key of a workload; the lowest key comes first.

        The elements are: lane and quota tier in one number; decayed use divided by weight (0 unless wholly
        borrowed); False if overdue; the submit time if overdue, otherwise the effective submit time; team;
        id.
        """
        quota_tier = self._best_quota_tier(queued) if lane == ORDINARY else 0
        share = self.decayed_use_by_weight.get(queued.team, 0.0) if quota_tier == BORROWING else 0.0
        effective_time = queued.submitted if waited_too_long else effective_submit_time(queued)
        return (
            lane * len(QUOTA_TIERS) + quota_tier,
            share,
            not waited_too_long,
            effective_time,
            queued.team,
            queued.id,
        )

    def _best_quota_tier(self, queued: QueuedWorkload) -> int:
        """Return the best (lowest) quota tier of the workload over all kinds of units that serve its ask.

        The result is cached for equal asks of a team until the team gets slots.
        """
        ask, version = self.state.resolve_ask(queued.ask), self.state.ledger.change_count[queued.team]
        cached = self._quota_tiers.get((queued.team, ask.number))
        if cached is None or cached[0] != version:
            best = min([self._quota_tier_on(queued, kind) for kind in ask.kinds], default=BORROWING)
            cached = self._quota_tiers[queued.team, ask.number] = version, best
        return cached[1]

    def _quota_tier_on(self, queued: QueuedWorkload, kind: int) -> int:
        """Return the quota tier that the workload would have on units of one kind."""
        state = self.state
        return state.ledger.quota_tier_of(
            queued.team, state.kinds[kind].model, state.slots_needed(queued.ask, kind)
        )

    def may_take_kind_now(self, queued: QueuedWorkload, kind: int) -> bool:
        """Return True if the workload may take this kind now, False if it must wait for its second turn.

        A workload may have an early turn, because its team has a guarantee of one model, and still prefer to
        borrow another model. In this case ``requeued`` is set. The second turn of the workload comes after
        the work for which a guarantee of that other model exists, and before work that is wholly borrowed.
        """
        is_within_guarantee = self._turn_key[0] == ORDINARY * len(QUOTA_TIERS) + WITHIN_GUARANTEE
        self.requeued = is_within_guarantee and self._quota_tier_on(queued, kind) > WITHIN_GUARANTEE
        return not self.requeued

    def note_started(self, queued: QueuedWorkload) -> None:
        """Add the expected use of a started workload to its team's decayed use, for the rest of the cycle."""
        added = expected_slot_seconds(self.state, queued) / max(1, self.weights.get(queued.team, 1))
        self.decayed_use_by_weight[queued.team] = self.decayed_use_by_weight.get(queued.team, 0.0) + added

    def note_unplaced(self, queued: QueuedWorkload, scope: SkipScope) -> None:
        """Record that a workload got no units, so that the members of its class in ``scope`` are skipped."""
        if self.group is not None:
            self.unschedulable.note(self.group, queued, scope)
