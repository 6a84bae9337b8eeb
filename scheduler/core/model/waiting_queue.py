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
    """Submit time plus ten times the expected run time, at most 48 hours."""
    return queued.submitted + min(RUNTIME_WEIGHT * queued.predicted_seconds, MAX_RUNTIME_PENALTY_SECONDS)


def expected_seconds(queued: QueuedWorkload) -> int:
    """How long a workload is expected to run at the longest: twice the prediction, never above its limit."""
    return min(queued.max_runtime_seconds, max(1, 2 * queued.predicted_seconds))


def expected_unit_seconds(queued: QueuedWorkload) -> int:
    """What a workload is expected to take of a pool."""
    return queued.ask.total_units * queued.predicted_seconds


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

    def workloads_in(
        self, groups: list[EquivalenceClass], workloads: AbstractSet[int]
    ) -> list[QueuedWorkload]:
        """Of these workloads, those that stand in one of the groups."""
        standing = {id(group) for group in groups}
        rows = [
            self.by_id[workload]
            for workload in sorted(workloads)
            if workload not in self.individually_checked
        ]
        return [row for row in rows if id(self.groups[self._key(row)]) in standing]

    def asks(self) -> list[tuple[Ask, int]]:
        """Every ask that waits, and how often; equal asks may come up more than once."""
        found: dict[int, list[EquivalenceClass]] = defaultdict(list)
        for (number, _), group in self.groups.items():
            found[number].append(group)
        alike = [
            (groups[0].first.ask, sum(len(group.members) for group in groups)) for groups in found.values()
        ]
        return [*alike, *((queued.ask, 1) for queued in self.individually_checked.values())]

    def rows(self) -> list[QueuedWorkload]:
        """All of them, in the order of their ids."""
        return [self.by_id[workload] for workload in sorted(self.by_id)]

    def _key(self, queued: QueuedWorkload) -> tuple[int, Hashable]:
        user = 0 if self.policy.most_slots_per_user is None else queued.user
        number = self.ground.ask_number(queued.ask)
        evicted = (
            queued.evicted_by is not None
        )  # by whom matters only to who may evict, and those are looked at singly
        who = queued.team, user, queued.priority, queued.preemptible, queued.may_borrow, evicted
        return number, who
