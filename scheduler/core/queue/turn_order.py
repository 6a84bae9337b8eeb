"""Decide the order of turns in one pool.

Across teams: (1) work inside a reservation, (2) work for which an eviction is in progress, (3) work wholly
within its team's guarantee, (4) work of a team below its guarantee, (5) borrowers, the team with the least
decayed use by weight first.

Within a team: by priority, then by submit time plus ten times the predicted runtime, but at most plus 48
hours. So short jobs come first, but a long job waits for a bounded time. After 24 hours a team's oldest job
comes first, and after 6 hours its oldest job over 8 GPUs. Every key ends in the id.
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
    """Return the slot-seconds that a start adds to its team's use in this cycle.

    Without this addition one team could take all free units of a cycle.
    """
    kinds = state.kinds_for(queued.ask)
    slots = state.slots_needed(queued.ask, kinds[0]) if kinds else queued.ask.total_units * SLOTS_PER_GPU
    return slots * min(queued.predicted_seconds, state.policy.half_life_seconds)


class TurnOrder:
    """The queue of one pool, one turn after another. A team's next turn depends on the slots that the team
    got so far in the cycle.
    """

    def __init__(
        self,
        state: PoolState,
        eligible: EligibleWork,
        recorded_turns: dict[int, QueueTurn] | None = None,
    ) -> None:
        """Queue the eligible work. ``recorded_turns``, if given, is filled with each workload's turn."""
        pool, classes = state.pool_snapshot, eligible.classes
        self.state, self.weights = state, pool.weights
        self.decayed_use_by_weight = dict(pool.decayed_use_by_weight)
        self.unschedulable = UnschedulableClasses(state)
        self.recorded_turns = recorded_turns
        self.group: EquivalenceClass | None = None  # class of the workload whose turn it is
        self.requeued = False  # True if the workload whose turn it is gets another turn later
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
        """Split a team's classes into parts that have no model in common.

        A workload that would borrow one model then does not delay work that is guaranteed another model.
        There is only one part if the pool caps the slots of each user, because all models then compete.
        """
        if len(self.state.hardware.models) == 1 or self.state.policy.max_slots_per_user is not None:
            return [groups]
        models = [self._models(group.first) for group in groups]
        parts: list[int] = []
        for mask in sorted(set(models)):
            joined = [part for part in parts if part & mask]
            parts = [part for part in parts if not part & mask]
            # The parts have no bit in common, so their sum is their union.
            parts.append(mask | sum(joined))
        if len(parts) == 1:
            return [groups]
        classes: list[list[EquivalenceClass]] = [[] for _ in parts]
        for group, mask in zip(groups, models):
            classes[next(number for number, part in enumerate(parts) if mask & part == mask)].append(group)
        return classes

    def _models(self, queued: QueuedWorkload) -> int:
        """Return the models that serve the ask, as a bit mask."""
        of_kind, mask = self.state.hardware.model_of_kind, 0
        for kind in self.state.kinds_for(queued.ask):
            mask |= 1 << of_kind[kind]
        return mask

    def _lane(self, queued: QueuedWorkload) -> int:
        """Return the lane of a workload."""
        if queued.reservation is not None:
            return INSIDE_RESERVATION
        return EVICTION_IN_PROGRESS if queued.id in self.state.workloads_with_earmarks else ORDINARY

    def __iter__(self) -> Iterator[QueuedWorkload]:
        """Yield each workload when its turn comes; a requeued workload gets a second turn."""
        # One lane follows another, because units assigned in one lane change the keys of the next lane.
        for lane in LANES:
            heap: list[tuple[TurnKey, TeamQueueKey, QueuedWorkload, EquivalenceClass]] = []
            for team_queue in sorted(self.team_queues):
                if team_queue[0] == lane:
                    self._push_next(heap, team_queue)
            while heap:
                key, team_queue, queued, group = heapq.heappop(heap)
                used = self.decayed_use_by_weight.get(queued.team, 0.0)
                if key[0] == BORROWER_TIER and key[1] < used:
                    # Another queue of the same team got units meanwhile, so the key is out of date.
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
        """Push the next turn of a team's queue on the heap."""
        turn = self.team_queues[team_queue].next()
        if turn is not None:
            queued, group, waited_too_long, skipped = turn
            # A workload's key is never less than the keys of the team's workloads before it, visited or
            # skipped.
            key = self._key(team_queue[0], queued, waited_too_long)
            if skipped:
                key = max(key, *(self._key(team_queue[0], workload, False) for workload in skipped))
            heapq.heappush(heap, (key, team_queue, queued, group))

    def _key(self, lane: int, queued: QueuedWorkload, waited_too_long: bool) -> TurnKey:
        """Return (lane and quota tier, fair share of borrowers, not overdue, time in the queue, team, id)."""
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
        """Return the best quota tier over all kinds that serve the ask.

        The result is cached for equal asks until the team gets slots.
        """
        ask, version = self.state.resolve_ask(queued.ask), self.state.ledger.change_count[queued.team]
        cached = self._quota_tiers.get((queued.team, ask.number))
        if cached is None or cached[0] != version:
            best = min([self._quota_tier_on(queued, kind) for kind in ask.kinds], default=BORROWING)
            cached = self._quota_tiers[queued.team, ask.number] = version, best
        return cached[1]

    def _quota_tier_on(self, queued: QueuedWorkload, kind: int) -> int:
        """Return the quota tier that the workload would have on one kind."""
        state = self.state
        return state.ledger.quota_tier_of(
            queued.team, state.kinds[kind].model, state.slots_needed(queued.ask, kind)
        )

    def may_take_kind_now(self, queued: QueuedWorkload, kind: int) -> bool:
        """Return True if the workload may take units of this kind now.

        The workload is requeued if it is guaranteed another model, but would take this kind beyond its team's
        guarantee. Its second turn comes after the work that is guaranteed this model and before all
        borrowers.
        """
        is_within_guarantee = self._turn_key[0] == ORDINARY * len(QUOTA_TIERS) + WITHIN_GUARANTEE
        self.requeued = is_within_guarantee and self._quota_tier_on(queued, kind) > WITHIN_GUARANTEE
        return not self.requeued

    def note_started(self, queued: QueuedWorkload) -> None:
        """Add a started workload to its team's decayed use, for the rest of the cycle."""
        added = expected_slot_seconds(self.state, queued) / max(1, self.weights.get(queued.team, 1))
        self.decayed_use_by_weight[queued.team] = self.decayed_use_by_weight.get(queued.team, 0.0) + added

    def note_unplaced(self, queued: QueuedWorkload, scope: SkipScope) -> None:
        """Record that a workload got no units, and skip the members of its class in ``scope``."""
        if self.group is not None:
            self.unschedulable.note(self.group, queued, scope)
