"""Who is looked at first.

Across teams: (1) work inside a reservation, (2) work that others are already making room for, (3) work wholly within
its team's guarantee, (4) work of a team that is below its guarantee, (5) borrowers, the team with the least decayed use
by weight first. Within a team: priority, then the bounded shortest-expected-first order, in which a job's place is its
submit time plus ten times its expected run time, never more than 48 hours extra; a team's oldest job goes first after
24 hours, its oldest over 8 GPUs after 6. Every key ends in the id.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from scheduler.core.model.hardware import PoolHardware
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
from scheduler.core.model.snapshot import SLOTS_PER_GPU, Ask, PoolPolicy, QueuedWorkload

if TYPE_CHECKING:
    from scheduler.core.model.pool_state import PoolState

RUNTIME_WEIGHT = 10
MAX_RUNTIME_PENALTY_SECONDS = 48 * 3600
OLDEST_FIRST_AFTER_SECONDS = 24 * 3600
LARGE_OLDEST_FIRST_AFTER_SECONDS = 6 * 3600
LARGE_JOB_UNITS = 8

LANES = INSIDE_RESERVATION, EVICTION_IN_PROGRESS, ORDINARY = 0, 1, 2  # inside a reservation, with room being made, everybody else
BORROWER_TIER = ORDINARY * len(QUOTA_TIERS) + BORROWING  # the first part of a borrower's key

TurnKey = tuple[int, float, bool, int, int, int]
TeamQueueKey = tuple[int, int, int]  # lane, team, and which of its lines there


def effective_submit_time(queued: QueuedWorkload) -> int:
    """Submit time plus ten times the expected run time, at most 48 hours."""
    return queued.submitted + min(RUNTIME_WEIGHT * queued.predicted_seconds, MAX_RUNTIME_PENALTY_SECONDS)


def is_large_job(queued: QueuedWorkload) -> bool:
    return queued.ask.total_units > LARGE_JOB_UNITS


def expected_seconds(queued: QueuedWorkload) -> int:
    """How long a workload is expected to run at the longest: twice the prediction, never above its limit."""
    return min(queued.max_runtime_seconds, max(1, 2 * queued.predicted_seconds))


def expected_unit_seconds(queued: QueuedWorkload) -> int:
    """What a workload is expected to take of a pool."""
    return queued.ask.total_units * queued.predicted_seconds


def expected_slot_seconds(board: PoolState, queued: QueuedWorkload) -> int:
    """What a start adds to its team's use as fair share sees it, so that one team does not take a whole cycle."""
    kinds = board.kinds_for(queued.ask)
    slots = board.slots_needed(queued.ask, kinds[0]) if kinds else queued.ask.total_units * SLOTS_PER_GPU
    return slots * min(queued.predicted_seconds, board.policy.half_life_seconds)


class EquivalenceClass:
    """Waiting work that differs only in its times: what one of them can't get, no other can that takes as long."""

    def __init__(self) -> None:
        self.members: list[tuple[int, int, QueuedWorkload]] = []  # (place in line, id, row), in order
        self.ages: list[tuple[int, int, QueuedWorkload]] = []  # (submitted, id, row), in order
        self.lengths: list[tuple[int, int]] = []  # (expected run time, id), in order
        self.unit_seconds = 0  # what all of them are expected to take

    def fill(self, rows: list[QueuedWorkload]) -> None:
        """Start with these: sooner than adding one by one."""
        self.members = [(effective_submit_time(queued), queued.id, queued) for queued in rows]
        self.ages = [(queued.submitted, queued.id, queued) for queued in rows]
        self.lengths = [(expected_seconds(queued), queued.id) for queued in rows]
        self.unit_seconds = sum([expected_unit_seconds(queued) for queued in rows])
        if len(rows) > 1:  # half of the groups of a mixed queue have one member only
            self.members.sort()
            self.ages.sort()
            self.lengths.sort()

    def add(self, queued: QueuedWorkload) -> None:
        insort(self.members, (effective_submit_time(queued), queued.id, queued))
        insort(self.ages, (queued.submitted, queued.id, queued))
        insort(self.lengths, (expected_seconds(queued), queued.id))
        self.unit_seconds += expected_unit_seconds(queued)

    def remove(self, queued: QueuedWorkload) -> None:
        del self.members[bisect_left(self.members, (effective_submit_time(queued), queued.id))]
        del self.ages[bisect_left(self.ages, (queued.submitted, queued.id))]
        del self.lengths[bisect_left(self.lengths, (expected_seconds(queued), queued.id))]
        self.unit_seconds -= expected_unit_seconds(queued)

    @property
    def first(self) -> QueuedWorkload:
        return self.members[0][2]

    def oldest(self, without: AbstractSet[int]) -> tuple[int, int, QueuedWorkload] | None:
        """(submitted, id, row) of the oldest member that is not among ``without``."""
        return next((age for age in self.ages if age[1] not in without), None)


class PoolQueue:
    """The waiting work of one pool, kept in groups; what has a gate, a back-off or a reservation stands apart."""

    def __init__(self, ground: PoolHardware, policy: PoolPolicy) -> None:
        self.ground, self.policy = ground, policy
        self.by_id: dict[int, QueuedWorkload] = {}
        self.groups: dict[tuple[int, Hashable], EquivalenceClass] = {}
        self.individually_checked: dict[int, QueuedWorkload] = {}  # looked at one by one in every cycle
        self.earmarked: dict[int, QueuedWorkload] = {}  # those that units are kept for

    def fill(self, rows: Iterable[QueuedWorkload]) -> None:
        """Start with these: sooner than adding one by one."""
        alike: dict[tuple[int, Hashable], list[QueuedWorkload]] = defaultdict(list)
        for row in rows:
            self.by_id[row.id] = row
            if row.earmarked_units:
                self.earmarked[row.id] = row
            if self._is_checked_individually(row):
                self.individually_checked[row.id] = row
            else:
                alike[self._key(row)].append(row)
        for key, members in alike.items():
            self.groups[key] = EquivalenceClass()
            self.groups[key].fill(members)

    def change(self, gone: Iterable[int], rows: Iterable[QueuedWorkload]) -> None:
        """Workloads that wait no longer, by id, and those that are new or changed."""
        for workload in gone:
            if workload in self.by_id:
                self._remove(self.by_id[workload])
        for row in rows:
            if row.id in self.by_id:
                self._remove(self.by_id[row.id])
            self._add(row)

    def _add(self, queued: QueuedWorkload) -> None:
        self.by_id[queued.id] = queued
        if self._is_checked_individually(queued):
            self.individually_checked[queued.id] = queued
        else:
            self.groups.setdefault(self._key(queued), EquivalenceClass()).add(queued)
        if queued.earmarked_units:
            self.earmarked[queued.id] = queued

    def _remove(self, queued: QueuedWorkload) -> None:
        del self.by_id[queued.id]
        self.earmarked.pop(queued.id, None)
        if self.individually_checked.pop(queued.id, None) is None:
            key = self._key(queued)
            self.groups[key].remove(queued)
            if not self.groups[key].members:
                del self.groups[key]

    def _is_checked_individually(self, queued: QueuedWorkload) -> bool:
        too_long = queued.max_runtime_seconds > self.policy.longest_runtime_seconds
        return bool(queued.gate) or queued.not_before > 0 or queued.reservation is not None or too_long

    def workloads_in(self, groups: list[EquivalenceClass], workloads: AbstractSet[int]) -> list[QueuedWorkload]:
        """Of these workloads, those that stand in one of the groups."""
        standing = {id(group) for group in groups}
        rows = [self.by_id[workload] for workload in sorted(workloads) if workload not in self.individually_checked]
        return [row for row in rows if id(self.groups[self._key(row)]) in standing]

    def asks(self) -> list[tuple[Ask, int]]:
        """Every ask that waits, and how often; equal asks may come up more than once."""
        found: dict[int, list[EquivalenceClass]] = defaultdict(list)
        for (number, _), group in self.groups.items():
            found[number].append(group)
        alike = [(groups[0].first.ask, sum(len(group.members) for group in groups)) for groups in found.values()]
        return [*alike, *((queued.ask, 1) for queued in self.individually_checked.values())]

    def rows(self) -> list[QueuedWorkload]:
        """All of them, in the order of their ids."""
        return [self.by_id[workload] for workload in sorted(self.by_id)]

    def _key(self, queued: QueuedWorkload) -> tuple[int, Hashable]:
        user = 0 if self.policy.most_slots_per_user is None else queued.user
        number = self.ground.ask_number(queued.ask)
        evicted = queued.evicted_by is not None  # by whom matters only to who may evict, and those are looked at singly
        who = queued.team, user, queued.priority, queued.preemptible, queued.may_borrow, evicted
        return number, who


class TeamQueue:
    """One team's queue in one lane: priority first, then what waited too long, then the place in line."""

    def __init__(self, groups: list[EquivalenceClass], now: int, elsewhere: AbstractSet[int], hopeless: UnschedulableClasses) -> None:
        self.now, self.elsewhere, self.hopeless = now, elsewhere, hopeless
        self.by_priority: dict[int, list[EquivalenceClass]] = defaultdict(list)
        for group in groups:
            self.by_priority[group.first.priority].append(group)
        self.last_skipped: dict[int, QueuedWorkload] = {}  # group -> the last of it that was passed over since the last turn
        self._turns = self._iterate()

    def next(self) -> tuple[QueuedWorkload, EquivalenceClass, bool, list[QueuedWorkload]] | None:
        """Whose turn it is, its group, has it waited too long, and the last of each group passed over on the way."""
        found = next(self._turns, None)
        if found is None:
            return None
        skipped, self.last_skipped = list(self.last_skipped.values()), {}
        return *found, skipped

    def _iterate(self) -> Iterator[tuple[QueuedWorkload, EquivalenceClass, bool]]:
        for priority in sorted(self.by_priority, reverse=True):
            groups = self.by_priority[priority]
            aged = self._aged(groups)
            yield from ((*one, True) for one in aged)
            rest = self._by_submit_time(groups, self.elsewhere | {queued.id for queued, _ in aged})
            yield from ((*one, False) for one in rest)

    def _aged(self, groups: list[EquivalenceClass]) -> list[tuple[QueuedWorkload, EquivalenceClass]]:
        """The oldest when it waited too long, and the oldest large one, in order of submission."""
        found: dict[tuple[int, int], tuple[QueuedWorkload, EquivalenceClass]] = {}
        for candidates, after in (
            (groups, OLDEST_FIRST_AFTER_SECONDS),
            ([group for group in groups if is_large_job(group.first)], LARGE_OLDEST_FIRST_AFTER_SECONDS),
        ):
            oldest = [(group.oldest(self.elsewhere), group) for group in candidates]
            known = [(age[:2], age[2], group) for age, group in oldest if age is not None]
            if known:
                since, queued, group = min(known, key=lambda one: one[0])
                if self.now - since[0] > after:
                    found[since] = queued, group
        return [found[since] for since in sorted(found)]

    def _by_submit_time(self, groups: list[EquivalenceClass], elsewhere: AbstractSet[int]) -> Iterator[tuple[QueuedWorkload, EquivalenceClass]]:
        """The groups merged, those left out that are known to get nothing: for a long queue that is nearly all of it."""
        heap = [(*group.members[0][:2], number, 0) for number, group in enumerate(groups)]
        heapq.heapify(heap)
        given_up: dict[int, int] = {}  # group -> from which member on
        whole, partly = self.hopeless.whole, self.hopeless.partly  # empty as long as everybody is told why
        while heap:
            place, workload, number, at = heap[0]
            group = groups[number]
            if whole and id(group) in whole:
                heapq.heappop(heap)
                given_up[number] = at
                continue
            queued = group.members[at][2]
            if at + 1 < len(group.members):
                heapq.heapreplace(heap, (*group.members[at + 1][:2], number, at + 1))
            else:
                heapq.heappop(heap)
            if workload in elsewhere:
                continue
            if partly and self.hopeless.has(group, queued):
                self.last_skipped[id(group)] = queued
                continue
            for other, reached in given_up.items():
                given_up[other] = self._skip(groups[other], reached, (place, workload), elsewhere)
            yield queued, group
        for other, reached in given_up.items():
            self._skip(groups[other], reached, None, elsewhere)

    def _skip(self, group: EquivalenceClass, reached: int, before: tuple[int, int] | None, elsewhere: AbstractSet[int]) -> int:
        """Pass over a given-up group's members as far as ``before``."""
        to = len(group.members) if before is None else bisect_left(group.members, before)
        for at in range(to - 1, reached - 1, -1):
            if group.members[at][1] not in elsewhere:
                self.last_skipped[id(group)] = group.members[at][2]
                break
        return to


class SkipScope(Enum):
    """Of a group, those of whom the same is known as of one of them."""

    NOBODY = "nobody"
    AS_LONG = "as long"  # who is expected to run, and may run, at least as long
    ALL = "all"


class UnschedulableClasses:
    """What is known in one cycle of groups that get nothing more: nobody of them, or nobody who runs as long.

    Units are only taken within a cycle, and who runs longer may use fewer of those promised to others.
    """

    def __init__(self, board: PoolState) -> None:
        self.board = board
        self.whole: set[int] = set()
        self.partly: dict[int, list[tuple[int, int]]] = {}  # group -> (expected, longest) run times, in seconds

    def note(self, group: EquivalenceClass, queued: QueuedWorkload, alike: SkipScope) -> None:
        """A member got nothing, and so will those alike."""
        if alike is SkipScope.AS_LONG:
            expected, longest = self.board.skip_bounds(queued, expected_seconds(queued))
            if group.lengths[0][0] >= expected and longest == 0:
                alike = SkipScope.ALL  # nobody of the group is shorter
            else:
                self.partly.setdefault(id(group), []).append((expected, longest))
        if alike is SkipScope.ALL:
            self.whole.add(id(group))

    def has(self, group: EquivalenceClass, queued: QueuedWorkload) -> bool:
        known = self.partly.get(id(group))
        if known is None:
            return False
        expected, longest = expected_seconds(queued), queued.max_runtime_seconds
        return any(expected >= shorter and longest >= limit for shorter, limit in known)


class TurnCriterion(StrEnum):
    """What puts one workload before another, the first part of the order that differs."""

    RESERVATION = "reservation"  # it runs inside a reservation
    ROOM_IS_MADE = "room_is_made"  # others are already making room for it
    WITHIN_GUARANTEE = "within_guarantee"  # wholly; the other is not
    BELOW_GUARANTEE = "below_guarantee"  # its team holds less than its guarantee; the other would only borrow
    FAIR_SHARE = "fair_share"  # both borrow; its team used less by its weight
    OWN_TEAM = "own_team"  # the other stood behind work of its own team until then
    PRIORITY = "priority"  # of one team
    AGED = "aged"  # it waited too long by the rule, the other did not
    SUBMITTED = "submitted"  # both waited too long: by the time they were submitted
    PLACE = "place"  # submit time and expected run time
    NUMBER = "number"  # equal in all else: the lower number


@dataclass(frozen=True, slots=True)
class QueueTurn:
    """What a workload's turn in one cycle was decided by. ``at`` counts the turns; ``share`` (decayed use by weight, with
    what this cycle gave out) and the place in line are as they were then."""

    at: int
    queued: QueuedWorkload
    key: TurnKey
    aged: bool
    line: TeamQueueKey

    @property
    def turn_lane(self) -> int:
        """0 inside a reservation, 1 with room being made, 2 everybody else."""
        return self.key[0] // len(QUOTA_TIERS)

    @property
    def claim(self) -> int:
        """0 within the guarantee, 1 of a team below its guarantee, 2 borrowing; 0 outside lane 2."""
        return self.key[0] % len(QUOTA_TIERS)

    @property
    def share(self) -> float:
        """Of its team, in slot-seconds by weight; 0 where that does not count."""
        return self.key[1]


def deciding_criterion(first: QueueTurn, second: QueueTurn) -> TurnCriterion:
    """Why ``first`` had its turn before ``second`` in the same cycle (``first.at < second.at``)."""
    if first.line == second.line:
        if first.queued.priority != second.queued.priority:
            return TurnCriterion.PRIORITY
    elif first.key > second.key:
        return TurnCriterion.OWN_TEAM  # its key says otherwise, but it was not yet at the head of its team's line
    elif first.key[0] != second.key[0]:
        lanes = {0: TurnCriterion.RESERVATION, 1: TurnCriterion.ROOM_IS_MADE}
        return lanes.get(first.turn_lane) or (TurnCriterion.BELOW_GUARANTEE if first.claim else TurnCriterion.WITHIN_GUARANTEE)
    elif first.share != second.share:
        return TurnCriterion.FAIR_SHARE
    if first.aged != second.aged:
        return TurnCriterion.AGED
    if first.key[3] != second.key[3]:
        return TurnCriterion.SUBMITTED if first.aged else TurnCriterion.PLACE
    return TurnCriterion.NUMBER


class TurnOrder:
    """The queue of one pool, handed out one by one; a team's turn depends on what it was given so far."""

    def __init__(self, board: PoolState, groups: list[EquivalenceClass], singles: list[QueuedWorkload]) -> None:
        """``groups`` and ``singles`` (what stands apart) are those who may stand in line; the rest was turned away."""
        self.board, self.shares, self.weights = board, dict(board.facts.shares), board.facts.weights
        self.hopeless = UnschedulableClasses(board)
        self.unit_seconds = sum(group.unit_seconds for group in groups)  # what may stand in line is expected to take
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
            parts.append(mask | sum(joined))  # parts have no model in common, so that their sum is their union
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
                if key[0] == BORROWER_TIER and key[1] < self.shares.get(queued.team, 0.0):  # another line of its team was served
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

    def _push_next(self, heap: list[tuple[TurnKey, TeamQueueKey, QueuedWorkload, EquivalenceClass]], line: TeamQueueKey) -> None:
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
        return board.ledger.quota_tier_of(queued.team, board.kinds[kind].model, board.slots_needed(queued.ask, kind))

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
