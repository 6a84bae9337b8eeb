from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import TYPE_CHECKING

from scheduler.core.model.snapshot import QueuedWorkload
from scheduler.core.model.waiting_queue import EquivalenceClass, expected_seconds

if TYPE_CHECKING:
    from scheduler.core.model.pool_state import PoolState


OLDEST_FIRST_AFTER_SECONDS = 24 * 3600


LARGE_OLDEST_FIRST_AFTER_SECONDS = 6 * 3600


LARGE_JOB_UNITS = 8


def is_large_job(queued: QueuedWorkload) -> bool:
    return queued.ask.total_units > LARGE_JOB_UNITS


class TeamQueue:
    """One team's queue in one lane: priority first, then what waited too long, then the place in line."""

    def __init__(
        self,
        groups: list[EquivalenceClass],
        now: int,
        elsewhere: AbstractSet[int],
        hopeless: UnschedulableClasses,
    ) -> None:
        self.now, self.elsewhere, self.hopeless = now, elsewhere, hopeless
        self.by_priority: dict[int, list[EquivalenceClass]] = defaultdict(list)
        for group in groups:
            self.by_priority[group.first.priority].append(group)
        self.last_skipped: dict[
            int, QueuedWorkload
        ] = {}  # group -> the last of it that was passed over since the last turn
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

    def _by_submit_time(
        self, groups: list[EquivalenceClass], elsewhere: AbstractSet[int]
    ) -> Iterator[tuple[QueuedWorkload, EquivalenceClass]]:
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

    def _skip(
        self,
        group: EquivalenceClass,
        reached: int,
        before: tuple[int, int] | None,
        elsewhere: AbstractSet[int],
    ) -> int:
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
        self.partly: dict[
            int, list[tuple[int, int]]
        ] = {}  # group -> (expected, longest) run times, in seconds

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
