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
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from scheduler.core.model.quota_ledger import (
    BELOW_GUARANTEE as BELOW,
)
from scheduler.core.model.quota_ledger import (
    BORROWING,
    QUOTA_TIERS,
)
from scheduler.core.model.quota_ledger import (
    WITHIN_GUARANTEE as WITHIN,
)
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import QueuedWorkload
from scheduler.core.model.waiting_queue import EquivalenceClass, effective_submit_time
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


def expected_slot_seconds(board: PoolState, queued: QueuedWorkload) -> int:
    """What a start adds to its team's use as fair share sees it, so that one team does not take a whole cycle."""
    kinds = board.kinds_for(queued.ask)
    slots = board.slots_needed(queued.ask, kinds[0]) if kinds else queued.ask.total_units * SLOTS_PER_GPU
    return slots * min(queued.predicted_seconds, board.policy.half_life_seconds)


class TurnOrder:
    """The queue of one pool, handed out one by one; a team's turn depends on what it was given so far."""

    def __init__(
        self, board: PoolState, groups: list[EquivalenceClass], singles: list[QueuedWorkload]
    ) -> None:
        """``groups`` and ``singles`` (what stands apart) are those who may stand in line; the rest was turned away."""
        self.board, self.shares, self.weights = board, dict(board.facts.shares), board.facts.weights
        self.hopeless = UnschedulableClasses(board)
        self.unit_seconds = sum(
            group.unit_seconds for group in groups
        )  # what may stand in line is expected to take
        self.group: EquivalenceClass | None = None  # that of whose turn it is
        self.turns: dict[int, QueueTurn] | None = None  # by workload; kept only for who wants to be told why
        self.requeued = False  # has the one whose turn it is another turn later?
        self._turns = 0
        self._turn_key: TurnKey = (0, 0.0, False, 0, 0, 0)
        self._claims: dict[tuple[int, int], tuple[int, int]] = {}
        by_team: dict[tuple[int, int], list[EquivalenceClass]] = defaultdict(list)
        for group in groups:
            by_team[ORDINARY, group.first.team].append(group)
        for queued in (*singles, *board.facts.queue.workloads_in(groups, board.workloads_with_earmarks)):
            alone = EquivalenceClass()
            alone.add(queued)
            by_team[self._lane(queued), queued.team].append(alone)
        nobody: AbstractSet[int] = frozenset()
        self.lines: dict[TeamQueueKey, TeamQueue] = {}
        for (lane, team), mine in by_team.items():
            parts = self._for_different_models(mine) if lane == ORDINARY else [mine]
            for number, part in enumerate(parts):
                elsewhere = board.workloads_with_earmarks if lane == ORDINARY else nobody
                self.lines[lane, team, number] = TeamQueue(part, board.now, elsewhere, self.hopeless)

    def _for_different_models(self, groups: list[EquivalenceClass]) -> list[list[EquivalenceClass]]:
        """A team's work in parts of which no two would do with the same model: what it would borrow of one does not keep what it is
        guaranteed of another waiting. One line where a cap on each user makes all models compete."""
        if len(self.board.ground.models) == 1 or self.board.policy.most_slots_per_user is not None:
            return [groups]
        models = [self._models(group.first) for group in groups]
        parts: list[int] = []
        for mask in sorted(set(models)):
            joined = [part for part in parts if part & mask]
            parts = [part for part in parts if not part & mask]
            parts.append(
                mask | sum(joined)
            )  # parts have no model in common, so that their sum is their union
        if len(parts) == 1:
            return [groups]
        found: list[list[EquivalenceClass]] = [[] for _ in parts]
        for group, mask in zip(groups, models):
            found[next(number for number, part in enumerate(parts) if mask & part == mask)].append(group)
        return found

    def _models(self, queued: QueuedWorkload) -> int:
        """The models that would do, as bits."""
        of_kind, mask = self.board.ground.model_of_kind, 0
        for kind in self.board.kinds_for(queued.ask):
            mask |= 1 << of_kind[kind]
        return mask

    def _lane(self, queued: QueuedWorkload) -> int:
        if queued.reservation is not None:
            return INSIDE_RESERVATION
        return EVICTION_IN_PROGRESS if queued.id in self.board.workloads_with_earmarks else ORDINARY

    def __iter__(self) -> Iterator[QueuedWorkload]:
        for lane in LANES:  # one after another: what is given in one counts in the keys of the next
            heap: list[tuple[TurnKey, TeamQueueKey, QueuedWorkload, EquivalenceClass]] = []
            for line in sorted(self.lines):
                if line[0] == lane:
                    self._push_next(heap, line)
            while heap:
                key, line, queued, group = heapq.heappop(heap)
                if key[0] == BORROWER_TIER and key[1] < self.shares.get(
                    queued.team, 0.0
                ):  # another line of its team was served
                    heapq.heappush(heap, ((key[0], self.shares[queued.team], *key[2:]), line, queued, group))
                    continue
                self.group, self.requeued, self._turn_key = group, False, key
                self._turns += 1
                if self.turns is not None:
                    self.turns[queued.id] = QueueTurn(self._turns, queued, key, not key[2], line)
                yield queued
                if self.requeued:
                    heapq.heappush(heap, ((lane * len(QUOTA_TIERS) + BELOW, *key[1:]), line, queued, group))
                else:
                    self._push_next(heap, line)

    def _push_next(
        self, heap: list[tuple[TurnKey, TeamQueueKey, QueuedWorkload, EquivalenceClass]], line: TeamQueueKey
    ) -> None:
        found = self.lines[line].next()
        if found is not None:
            queued, group, aged, skipped = found
            # Its turn does not come before that of those in front of it, looked at or passed over.
            key = self._key(line[0], queued, aged)
            if skipped:
                key = max(key, *(self._key(line[0], one, False) for one in skipped))
            heapq.heappush(heap, (key, line, queued, group))

    def _key(self, lane: int, queued: QueuedWorkload, aged: bool) -> TurnKey:
        """Lane, the team's claim, fair share among borrowers, then who waited too long by submission, place in line, id."""
        claim = self._best_claim(queued) if lane == ORDINARY else 0
        share = self.shares.get(queued.team, 0.0) if claim == BORROWING else 0.0
        place = queued.submitted if aged else effective_submit_time(queued)
        return lane * len(QUOTA_TIERS) + claim, share, not aged, place, queued.team, queued.id

    def _best_claim(self, queued: QueuedWorkload) -> int:
        """Of all kinds that would do. Equals are answered once while their team holds the same."""
        ask, version = self.board.wanted(queued.ask), self.board.ledger.version[queued.team]
        known = self._claims.get((queued.team, ask.number))
        if known is None or known[0] != version:
            best = min([self._claim_on(queued, kind) for kind in ask.kinds], default=BORROWING)
            known = self._claims[queued.team, ask.number] = version, best
        return known[1]

    def _claim_on(self, queued: QueuedWorkload, kind: int) -> int:
        board = self.board
        return board.ledger.quota_tier_of(
            queued.team, board.kinds[kind].model, board.slots_needed(queued.ask, kind)
        )

    def may_take_kind_now(self, queued: QueuedWorkload, kind: int) -> bool:
        """Has it the turn for units of this kind? Who is guaranteed one model, and had rather have another that is beyond its
        guarantee, comes again when those have had their turn who are guaranteed that one, before all who only borrow."""
        first = self._turn_key[0] == ORDINARY * len(QUOTA_TIERS) + WITHIN
        self.requeued = first and self._claim_on(queued, kind) > WITHIN
        return not self.requeued

    def started(self, queued: QueuedWorkload) -> None:
        """Tell the line that a workload was given its units."""
        added = expected_slot_seconds(self.board, queued) / max(1, self.weights.get(queued.team, 1))
        self.shares[queued.team] = self.shares.get(queued.team, 0.0) + added

    def note_unplaced(self, queued: QueuedWorkload, alike: SkipScope) -> None:
        """Nor will those of its group that are alike: they are passed over from now on."""
        if self.group is not None:
            self.hopeless.note(self.group, queued, alike)
