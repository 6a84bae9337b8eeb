"""Group the waiting work of one pool in classes of workloads that differ only in their times."""

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
    """Return the submit time plus ten times the predicted runtime, but at most plus 48 hours."""
    return queued.submitted + min(RUNTIME_WEIGHT * queued.predicted_seconds, MAX_RUNTIME_PENALTY_SECONDS)


def expected_seconds(queued: QueuedWorkload) -> int:
    """Return the expected maximum of the runtime: twice the prediction, at most the limit."""
    return min(queued.max_runtime_seconds, max(1, 2 * queued.predicted_seconds))


def expected_unit_seconds(queued: QueuedWorkload) -> int:
    """Return the unit-seconds that a workload is expected to use."""
    return queued.ask.total_units * queued.predicted_seconds


class EquivalenceClass:
    """Waiting workloads that differ only in their times.

    If a member cannot get units, no member that runs at least as long can get them.
    """

    def __init__(self) -> None:
        self.members: list[tuple[int, int, QueuedWorkload]] = []  # (effective submit time, id, row), sorted
        self.ages: list[tuple[int, int, QueuedWorkload]] = []  # (submitted, id, row), sorted
        self.lengths: list[tuple[int, int]] = []  # (expected runtime, id), sorted
        self.unit_seconds = 0  # expected unit-seconds of all members

    def fill(self, rows: list[QueuedWorkload]) -> None:
        """Set the members of an empty class. This is faster than adding them one by one."""
        self.members = [(effective_submit_time(queued), queued.id, queued) for queued in rows]
        self.ages = [(queued.submitted, queued.id, queued) for queued in rows]
        self.lengths = [(expected_seconds(queued), queued.id) for queued in rows]
        self.unit_seconds = sum([expected_unit_seconds(queued) for queued in rows])
        if len(rows) > 1:  # In a mixed queue half of the classes have only one member.
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
        """Return the member with the least effective submit time."""
        return self.members[0][2]

    def oldest(self, excluded: AbstractSet[int]) -> tuple[int, int, QueuedWorkload] | None:
        """Return (submitted, id, row) of the oldest member that is not in ``excluded``, or None."""
        return next((age for age in self.ages if age[1] not in excluded), None)


class PoolQueue:
    """The waiting work of one pool in equivalence classes.

    Workloads with a gate, a back-off, a reservation or a runtime limit above the pool's are in no class and
    are checked individually.
    """

    def __init__(self, hardware: PoolHardware, policy: PoolPolicy) -> None:
        self.hardware, self.policy = hardware, policy
        self.by_id: dict[int, QueuedWorkload] = {}
        self.groups: dict[tuple[int, Hashable], EquivalenceClass] = {}
        self.individually_checked: dict[int, QueuedWorkload] = {}  # checked one by one in every cycle
        self.earmarked: dict[int, QueuedWorkload] = {}  # workloads with earmarked units

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
        """Return every waiting ask and its number of workloads. Equal asks may occur more than once."""
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
        # Members may differ in the workload for which they were evicted. This matters only if they may evict
        # work, and then no member is skipped.
        evicted = queued.evicted_by is not None
        owner = queued.team, user, queued.priority, queued.preemptible, queued.may_borrow, evicted
        return number, owner
