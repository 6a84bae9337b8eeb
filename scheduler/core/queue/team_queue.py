"""Order the waiting workloads of one team, and skip workloads that are known to get no units.

The queue of a pool has lanes (see ``queue.turn``): a lane is planned completely before the next one. A team
has its own queues in each lane. Workloads that differ only in their submit time, expected runtime and runtime
limit form an equivalence class. If one member of a class gets no units, other members often need not be
tried.
"""

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
    """Return True if the workload asks for more than ``LARGE_JOB_UNITS`` units in total."""
    return queued.ask.total_units > LARGE_JOB_UNITS


class TeamQueue:
    """A queue of one team in one lane, ordered by priority.

    Within one priority, overdue workloads (see ``_aged``) come first. The other workloads follow by their
    effective submit time, which puts short work before long work.
    """

    def __init__(
        self,
        groups: list[EquivalenceClass],
        now: int,
        excluded: AbstractSet[int],
        unschedulable: UnschedulableClasses,
    ) -> None:
        self.now, self.excluded, self.unschedulable = now, excluded, unschedulable
        self.by_priority: dict[int, list[EquivalenceClass]] = defaultdict(list)
        for group in groups:
            self.by_priority[group.first.priority].append(group)
        # By id() of a class: its last member that was skipped since the previous call of ``next``.
        self.last_skipped: dict[int, QueuedWorkload] = {}
        self._turns = self._iterate()

    def next(self) -> tuple[QueuedWorkload, EquivalenceClass, bool, list[QueuedWorkload]] | None:
        """Return (workload, its class, whether it is overdue, skipped workloads) for the next workload.

        Workloads that are known to get no units are skipped. Of each class, the result has only the last
        workload that was skipped since the previous call. Return None at the end of the queue.
        """
        turn = next(self._turns, None)
        if turn is None:
            return None
        skipped, self.last_skipped = list(self.last_skipped.values()), {}
        return *turn, skipped

    def _iterate(self) -> Iterator[tuple[QueuedWorkload, EquivalenceClass, bool]]:
        for priority in sorted(self.by_priority, reverse=True):
            groups = self.by_priority[priority]
            aged = self._aged(groups)
            yield from ((*pair, True) for pair in aged)
            rest = self._by_submit_time(groups, self.excluded | {queued.id for queued, _ in aged})
            yield from ((*pair, False) for pair in rest)

    def _aged(self, groups: list[EquivalenceClass]) -> list[tuple[QueuedWorkload, EquivalenceClass]]:
        """Return the overdue workloads, at most two, in order of submission.

        They are the oldest workload, if it has waited for more than 24 hours, and the oldest large workload,
        if it has waited for more than 6 hours.
        """
        turn: dict[tuple[int, int], tuple[QueuedWorkload, EquivalenceClass]] = {}
        for candidates, after in (
            (groups, OLDEST_FIRST_AFTER_SECONDS),
            ([group for group in groups if is_large_job(group.first)], LARGE_OLDEST_FIRST_AFTER_SECONDS),
        ):
            oldest = [(group.oldest(self.excluded), group) for group in candidates]
            known = [(age[:2], age[2], group) for age, group in oldest if age is not None]
            if known:
                submitted, queued, group = min(known, key=lambda pair: pair[0])
                if self.now - submitted[0] > after:
                    turn[submitted] = queued, group
        return [turn[submitted] for submitted in sorted(turn)]

    def _by_submit_time(
        self, groups: list[EquivalenceClass], excluded: AbstractSet[int]
    ) -> Iterator[tuple[QueuedWorkload, EquivalenceClass]]:
        """Yield (workload, its class) of all classes, ordered by effective submit time.

        Workloads that are known to get no units are skipped. In a long queue these are nearly all workloads.
        The members of all classes are merged with a heap. If no member of a class can get units, the whole
        class is removed from the heap at once.
        """
        heap = [(*group.members[0][:2], number, 0) for number, group in enumerate(groups)]
        heapq.heapify(heap)
        # The classes that were removed from the heap. By number of the class: the index of its first member
        # that ``_skip`` has not passed yet.
        given_up: dict[int, int] = {}
        # ``whole`` and ``partly`` are empty if the planner explains refusals, because it then visits every
        # workload.
        whole, partly = (
            self.unschedulable.skipped_classes,
            self.unschedulable.skipped_runtimes,
        )
        while heap:
            effective_time, workload, number, index = heap[0]
            group = groups[number]
            if whole and id(group) in whole:
                heapq.heappop(heap)
                given_up[number] = index
                continue
            queued = group.members[index][2]
            if index + 1 < len(group.members):
                heapq.heapreplace(heap, (*group.members[index + 1][:2], number, index + 1))
            else:
                heapq.heappop(heap)
            if workload in excluded:
                continue
            if partly and self.unschedulable.contains(group, queued):
                self.last_skipped[id(group)] = queued
                continue
            for other, reached in given_up.items():
                given_up[other] = self._skip(groups[other], reached, (effective_time, workload), excluded)
            yield queued, group
        for other, reached in given_up.items():
            self._skip(groups[other], reached, None, excluded)

    def _skip(
        self,
        group: EquivalenceClass,
        reached: int,
        before: tuple[int, int] | None,
        excluded: AbstractSet[int],
    ) -> int:
        """Skip members of a class that was removed from the heap, and record the last of them.

        The skipped members begin at the index ``reached``. Their (effective submit time, id) is less than
        ``before``. If ``before`` is None, all members from ``reached`` on are skipped. Return the index after
        the last skipped member.
        """
        to = len(group.members) if before is None else bisect_left(group.members, before)
        for index in range(to - 1, reached - 1, -1):
            if group.members[index][1] not in excluded:
                self.last_skipped[id(group)] = group.members[index][2]
                break
        return to


class SkipScope(Enum):
    """Which other members of an equivalence class cannot start, if one member got no units."""

    NONE = "none"
    # The members whose expected runtime and runtime limit are at least the bounds of
    # ``PoolState.skip_bounds``.
    EQUAL_OR_LONGER = "equal or longer"
    ALL = "all"


class UnschedulableClasses:
    """The members of equivalence classes that are known to get no units in this cycle (run of the planner).

    If one member gets no units, a member that runs at least as long gets none either, for two reasons. First,
    free units only become fewer within a cycle. Second, some free units are promised to others from a future
    time on, and a longer workload may use fewer of these.
    """

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self.skipped_classes: set[int] = set()
        # By id() of a class: pairs (expected runtime, runtime limit) in seconds. A member is skipped if its
        # expected runtime and its runtime limit are at least the values of one pair.
        self.skipped_runtimes: dict[int, list[tuple[int, int]]] = {}

    def note(self, group: EquivalenceClass, queued: QueuedWorkload, scope: SkipScope) -> None:
        """Record that a member of the class got no units, so that the members in ``scope`` are skipped."""
        if scope is SkipScope.EQUAL_OR_LONGER:
            expected, longest = self.state.skip_bounds(queued, expected_seconds(queued))
            if group.lengths[0][0] >= expected and longest == 0:
                scope = SkipScope.ALL  # Every member of the class runs at least as long as this one.
            else:
                self.skipped_runtimes.setdefault(id(group), []).append((expected, longest))
        if scope is SkipScope.ALL:
            self.skipped_classes.add(id(group))

    def contains(self, group: EquivalenceClass, queued: QueuedWorkload) -> bool:
        """Return True if ``skipped_runtimes`` shows that the workload gets no units.

        The caller checks ``skipped_classes`` before.
        """
        known = self.skipped_runtimes.get(id(group))
        if known is None:
            return False
        expected, longest = expected_seconds(queued), queued.max_runtime_seconds
        return any(expected >= shorter and longest >= limit for shorter, limit in known)
