"""Group the waiting workloads of one pool into classes.

Workloads of one class are equal in every property that decides about a start, except in their times (submit
time, predicted runtime, runtime limit). The planner can then try one member instead of all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable, Iterable
from collections.abc import Set as AbstractSet

from scheduler.core.model.hardware import PoolHardware
from scheduler.core.model.snapshot import Ask, PoolPolicy, QueuedWorkload

RUNTIME_WEIGHT = 10


MAX_RUNTIME_PENALTY_SECONDS = 48 * 3600


def effective_submit_time(queued: QueuedWorkload) -> int:
    """Return the time by which the queue sorts a workload, so that short work comes before long work.

    It is the submit time plus ten times the predicted runtime; at most 48 hours are added. Example: work that
    is predicted to run for 1 hour counts as submitted 10 hours later.
    """
    return queued.submitted + min(RUNTIME_WEIGHT * queued.predicted_seconds, MAX_RUNTIME_PENALTY_SECONDS)


def expected_seconds(queued: QueuedWorkload) -> int:
    """Return the runtime (s) that plans assume: twice the predicted runtime, at most the runtime limit.

    The factor of 2 leaves a margin for predictions that are too short.
    """
    return min(queued.max_runtime_seconds, max(1, 2 * queued.predicted_seconds))


def expected_unit_seconds(queued: QueuedWorkload) -> int:
    """Return the number of units of a workload times its predicted runtime in seconds."""
    return queued.ask.total_units * queued.predicted_seconds


class EquivalenceClass:
    """Waiting workloads that are equal except in their times.

    If one member cannot get units now, members that run at least as long cannot get units either.
    """

    def __init__(self) -> None:
        self.members: list[tuple[int, int, QueuedWorkload]] = []  # (effective submit time, id, row), sorted
        self.ages: list[tuple[int, int, QueuedWorkload]] = []  # (submitted, id, row), sorted
        self.lengths: list[tuple[int, int]] = []  # (expected runtime, id), sorted
        self.unit_seconds = 0  # sum of ``expected_unit_seconds`` of all members

    def fill(self, rows: list[QueuedWorkload]) -> None:
        """Set the members of an empty class. This is faster than adding them one by one."""
        self.members = [(effective_submit_time(queued), queued.id, queued) for queued in rows]
        self.ages = [(queued.submitted, queued.id, queued) for queued in rows]
        self.lengths = [(expected_seconds(queued), queued.id) for queued in rows]
        self.unit_seconds = sum([expected_unit_seconds(queued) for queued in rows])
        if len(rows) > 1:  # Skip sorting for one member: often half of the classes have only one.
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
        """Return the member with the earliest effective submit time."""
        return self.members[0][2]

    def oldest(self, excluded: AbstractSet[int]) -> tuple[int, int, QueuedWorkload] | None:
        """Return (submitted, id, row) of the oldest member that is not in ``excluded``, or None."""
        return next((age for age in self.ages if age[1] not in excluded), None)


class PoolQueue:
    """The waiting workloads of one pool, grouped into equivalence classes.

    Some workloads are in no class and are checked one by one. They have a gate (a reason that prevents their
    start), a back-off, a reservation, or a longer runtime limit than the pool allows.
    """

    def __init__(self, hardware: PoolHardware, policy: PoolPolicy) -> None:
        self.hardware, self.policy = hardware, policy
        self.by_id: dict[int, QueuedWorkload] = {}
        self.groups: dict[tuple[int, Hashable], EquivalenceClass] = {}
        self.individually_checked: dict[int, QueuedWorkload] = {}  # by id: the workloads in no class
        # By id: the workloads with earmarked units (units that were freed for this workload alone).
        self.earmarked: dict[int, QueuedWorkload] = {}

    def fill(self, rows: Iterable[QueuedWorkload]) -> None:
        """Set the rows of an empty queue. This is faster than adding them one by one."""
        members_by_key: dict[tuple[int, Hashable], list[QueuedWorkload]] = defaultdict(list)
        for row in rows:
            self.by_id[row.id] = row
            if row.earmarked_units:
                self.earmarked[row.id] = row
            if self._is_checked_individually(row):
                self.individually_checked[row.id] = row
            else:
                members_by_key[self._key(row)].append(row)
        for key, members in members_by_key.items():
            self.groups[key] = EquivalenceClass()
            self.groups[key].fill(members)

    def change(self, removed: Iterable[int], rows: Iterable[QueuedWorkload]) -> None:
        """Remove workloads by id, and add or replace rows."""
        for workload in removed:
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

    def workloads_in(
        self, groups: list[EquivalenceClass], workloads: AbstractSet[int]
    ) -> list[QueuedWorkload]:
        """Return the given workloads that are members of one of the given classes."""
        class_ids = {id(group) for group in groups}
        rows = [
            self.by_id[workload]
            for workload in sorted(workloads)
            if workload not in self.individually_checked
        ]
        return [row for row in rows if id(self.groups[self._key(row)]) in class_ids]

    def asks(self) -> list[tuple[Ask, int]]:
        """Return (ask, number of workloads) for the requested hardware of all waiting workloads.

        Equal asks may occur more than once in the result.
        """
        by_number: dict[int, list[EquivalenceClass]] = defaultdict(list)
        for (number, _), group in self.groups.items():
            by_number[number].append(group)
        grouped = [
            (groups[0].first.ask, sum(len(group.members) for group in groups))
            for groups in by_number.values()
        ]
        return [*grouped, *((queued.ask, 1) for queued in self.individually_checked.values())]

    def rows(self) -> list[QueuedWorkload]:
        """Return all rows, sorted by id."""
        return [self.by_id[workload] for workload in sorted(self.by_id)]

    def _key(self, queued: QueuedWorkload) -> tuple[int, Hashable]:
        user = 0 if self.policy.max_slots_per_user is None else queued.user
        number = self.hardware.ask_number(queued.ask)
        # The key says whether a member was evicted for another workload, but not for which one. Members may
        # therefore differ in the workload that they may not evict in return. This difference is safe: if such
        # members may evict work, the planner skips none of them.
        evicted = queued.evicted_by is not None
        owner = queued.team, user, queued.priority, queued.preemptible, queued.may_borrow, evicted
        return number, owner
