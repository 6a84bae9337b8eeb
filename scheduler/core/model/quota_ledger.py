"""Count the slots that each team and user holds, and compute how many they may hold.

A team's guarantee is the number of slots that it can always have. A team borrows if it holds more than its
guarantee. Amounts are slots (a whole GPU has ``SLOTS_PER_GPU``), per team and GPU model of one pool.

The units of a reservation count as held by its team once the reservation has got them. Work inside the
reservation is then not counted again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.core.model.snapshot import PoolInfo, PoolKind, QuotaInfo, RunningWorkload

UNLIMITED_SLOTS = 1 << 60

TeamAndModel = tuple[int, str]  # (team, model)
# The quota tiers of a start. Work in an earlier tier comes first in the queue.
# - WITHIN_GUARANTEE: after the start, the team holds at most its guarantee.
# - BELOW_GUARANTEE: the team is below its guarantee now, and above it after the start.
# - BORROWING: the team already holds its whole guarantee, so all slots of the start are borrowed.
QUOTA_TIERS = WITHIN_GUARANTEE, BELOW_GUARANTEE, BORROWING = (
    0,
    1,
    2,
)


def decayed_use(
    slot_seconds: float, held_slots: int, elapsed_seconds: float, half_life_seconds: float
) -> float:
    """Return a team's decayed use (past use that halves with every half-life) after some time has passed.

    ``slot_seconds`` is the decayed use before that time. The team held ``held_slots`` during all of
    ``elapsed_seconds``.
    """
    remaining: float = 0.5 ** (elapsed_seconds / half_life_seconds)
    return slot_seconds * remaining + held_slots * half_life_seconds / math.log(2) * (1 - remaining)


class Headroom(NamedTuple):
    """The answer to the question whether a team may hold more slots of a model.

    ``allowed`` is the answer. ``borrowed`` is the part of the requested slots that is above the guarantee.
    ``held`` are the slots that count against ``limit``. They belong to all of the team's work, or only to its
    non-preemptible work if ``non_preemptible_only`` is True.
    """

    allowed: bool
    borrowed: int
    held: int
    guaranteed: int
    limit: int
    over: int  # the slots by which the request exceeds ``limit``; 0 if it does not
    non_preemptible_only: bool


class HeldSlots:
    """The slots that the running work of each team and user holds."""

    def __init__(self) -> None:
        self.by_team: dict[TeamAndModel, int] = defaultdict(int)  # only work outside reservations
        # The part of ``by_team`` that belongs to non-preemptible work.
        self.non_preemptible: dict[TeamAndModel, int] = defaultdict(int)
        # The part of ``by_team`` that belongs to evicted work that has not stopped yet.
        self.stopping: dict[TeamAndModel, int] = defaultdict(int)
        self.by_user: dict[int, int] = defaultdict(int)  # work inside and outside reservations

    def add(self, running: RunningWorkload, model: str, slots: int) -> None:
        """Add the slots of one model that a workload holds; negative ``slots`` subtract."""
        self.by_user[running.user] += slots
        if running.reservation is None:
            team_model = running.team, model
            self.by_team[team_model] += slots
            self.non_preemptible[team_model] += 0 if running.preemptible else slots
            self.stopping[team_model] += slots if running.stopping else 0


class PoolQuotas:
    """The quotas of one pool's teams, in slots."""

    def __init__(self, pool: PoolInfo, quotas: Iterable[QuotaInfo]) -> None:
        self.guaranteed: dict[TeamAndModel, int] = {}
        self.limit: dict[TeamAndModel, int] = {}
        self.used_up: dict[TeamAndModel, QuotaInfo] = {}  # quotas without GPU-hours left in this period
        for quota in quotas:
            if quota.pool == pool.id:
                key = (quota.team, quota.model)
                self.guaranteed[key] = quota.guaranteed
                self.limit[key] = (
                    UNLIMITED_SLOTS if quota.borrow_limit is None else quota.guaranteed + quota.borrow_limit
                )
                if quota.used_up_until is not None:
                    self.used_up[key] = quota
        self.teams = {team for team, _ in self.guaranteed}


class UpcomingReservation(NamedTuple):
    """A team's reservation that has no units yet.

    It will take ``slots`` of the team's guarantee from ``start`` to ``end`` (seconds since the epoch).
    """

    start: int
    end: int
    slots: int
    reservation: int


@dataclass(slots=True)
class ReservedHeadroom:
    """Slots below a team's or user's limit that are kept for a waiting workload until it can start.

    The workload can start at ``start`` (seconds since the epoch), when its ``blockers`` have ended. Work that
    comes later in the queue and ends after ``start`` may take ``left`` slots in total. If
    ``non_preemptible_only`` is True, this limit applies only to non-preemptible work.
    """

    workload: int
    start: int
    blockers: tuple[int, ...]
    left: int
    non_preemptible_only: bool


class QuotaLedger:
    """The slots that each team and user of one pool holds and may hold, while a plan is made."""

    def __init__(self, pool: PoolInfo, quotas: PoolQuotas, held: HeldSlots) -> None:
        self.pool = pool
        self.guaranteed, self.limit, self.teams_with_quota = quotas.guaranteed, quotas.limit, quotas.teams
        self.used_up = quotas.used_up
        self.held = held.by_team.copy()  # includes reservations with units and the placements of this plan
        # The part of ``held`` that belongs to reservations and to non-preemptible work.
        self.non_preemptible = held.non_preemptible.copy()
        self.held_at_start = held.by_team.copy()  # like ``held``, but without the placements of this plan
        self.stopping = held.stopping.copy()
        self.held_by_user = held.by_user.copy()
        self.change_count: dict[int, int] = defaultdict(int)  # by team: the number of changes of ``held``
        # By team. ``add_held_slots`` clears a team's entries.
        self._rooms: dict[int, dict[tuple[str, int, bool, bool], Headroom]] = defaultdict(dict)
        # By team. ``add_held_slots`` clears a team's entries.
        self.kinds_within_limits_cache: dict[int, dict[Hashable, list[int]]] = defaultdict(dict)
        self.upcoming_reservations: dict[TeamAndModel, list[UpcomingReservation]] = {}  # few teams have any
        # ``fit.quota_limits`` fills this cache.
        self.max_firm_with_others_cache: dict[TeamAndModel, list[tuple[UpcomingReservation, int]]] = {}
        self.reserved_headroom: dict[TeamAndModel, ReservedHeadroom] = {}
        self.reserved_user_headroom: dict[int, ReservedHeadroom] = {}  # by user: below the cap on one user

    def add_held_slots(self, team: int, model: str, slots: int, preemptible: bool) -> None:
        """Add slots that a team gets now, or will get, to the slots that it holds."""
        self.held[team, model] += slots
        self.non_preemptible[team, model] += 0 if preemptible else slots
        self.change_count[team] += 1
        self._rooms[team].clear()
        self.kinds_within_limits_cache[team].clear()

    def leaves_headroom(self, team: int, model: str, slots: int, end: int, preemptible: bool) -> bool:
        """Return True if work may start without using headroom that is reserved for its team's other work.

        The other work is ahead in the queue. Headroom is slots below the team's limit. ``end`` is the time at
        which the starting work ends.
        """
        reserved = self.reserved_headroom.get((team, model))
        return (
            reserved is None
            or end <= reserved.start
            or slots <= reserved.left
            or (reserved.non_preemptible_only and preemptible)
        )

    def leaves_user_headroom(self, user: int, slots: int, end: int) -> bool:
        """Return True if work may start without using headroom that is reserved for the user's other work.

        The other work is ahead in the queue. Headroom is slots below the cap on one user. ``end`` is the time
        at which the starting work ends.
        """
        reserved = self.reserved_user_headroom.get(user)
        return reserved is None or end <= reserved.start or slots <= reserved.left

    def use_user_headroom(self, user: int, slots: int, end: int) -> None:
        """Subtract ``slots`` from ``left`` of the user's reserved headroom.

        Call it for work that was started and ends at ``end``. If the work ends before the headroom is needed,
        nothing changes.
        """
        reserved = self.reserved_user_headroom.get(user)
        if reserved is not None and end > reserved.start:
            reserved.left -= slots

    def use_headroom(self, team: int, model: str, slots: int, end: int, preemptible: bool) -> None:
        """Subtract ``slots`` from ``left`` of the team's reserved headroom.

        Call it for work that was started and ends at ``end``. If the work ends before the headroom is needed,
        nothing changes.
        """
        reserved = self.reserved_headroom.get((team, model))
        if (
            reserved is not None
            and end > reserved.start
            and not (reserved.non_preemptible_only and preemptible)
        ):
            reserved.left -= slots

    def bind(self, team: int, model: str, slots: int) -> None:
        """Add the slots of units that a reservation of the team gets to the slots that the team holds."""
        self.add_held_slots(team, model, slots, preemptible=False)
        self.held_at_start[team, model] += slots

    def guarantee(self, team: int, model: str) -> int:
        """Return the slots that the team is guaranteed.

        A static pool belongs to one team. This team is guaranteed the whole pool, and other teams nothing.
        """
        if self.pool.kind is PoolKind.STATIC:
            return UNLIMITED_SLOTS if team == self.pool.team else 0
        return self.guaranteed.get((team, model), 0)

    def guaranteed_slots_at(self, team: int, model: str, time: int) -> int:
        """Return the slots that the team will be guaranteed at a future time.

        A guarantee whose GPU-hours are used up is 0 until the period ends. It is available again in the next
        period.
        """
        quota = self.used_up.get((team, model))
        if quota is not None and quota.used_up_until is not None and time >= quota.used_up_until:
            return quota.guaranteed_after_reset
        return self.guarantee(team, model)

    def max_slots(self, team: int, model: str) -> int:
        """Return the most slots that the team may hold: its guarantee plus its borrow limit."""
        return (
            self.guarantee(team, model)
            if self.pool.kind is PoolKind.STATIC
            else self.limit.get((team, model), 0)
        )

    def max_slots_at(self, team: int, model: str, time: int) -> int:
        """Return the most slots that the team may hold at a future time."""
        quota = self.used_up.get((team, model))
        if quota is None or quota.used_up_until is None or time < quota.used_up_until:
            return self.max_slots(team, model)
        return (
            UNLIMITED_SLOTS
            if quota.borrow_limit_after_reset is None
            else quota.guaranteed_after_reset + quota.borrow_limit_after_reset
        )

    def headroom(self, team: int, model: str, need: int, preemptible: bool, may_borrow: bool) -> Headroom:
        """Return whether the team may hold ``need`` more slots, with the numbers behind the answer.

        All non-preemptible work of a team must fit within its guarantee. Preemptible work does not count in
        this check. If both together exceed the guarantee, other teams may evict the preemptible work.
        Example: a team with a guarantee of 8 GPUs and 8 preemptible GPUs in use may start a notebook on 1
        more GPU.

        The result is cached until the team gets slots, because equal requests are frequent.
        """
        cached, key = self._rooms[team], (model, need, preemptible, may_borrow)
        room = cached.get(key)
        if room is None:
            room = cached[key] = self._room(team, model, need, preemptible, may_borrow)
        return room

    def _room(self, team: int, model: str, need: int, preemptible: bool, may_borrow: bool) -> Headroom:
        team_model = team, model
        held, firm = self.held.get(team_model, 0), self.non_preemptible.get(team_model, 0)
        guaranteed, limit = self.guarantee(team, model), self.max_slots(team, model)
        if not preemptible and firm + need > guaranteed:
            return Headroom(False, 0, firm, guaranteed, guaranteed, firm + need - guaranteed, True)
        if preemptible and not may_borrow:
            limit = guaranteed
        borrowed = min(need, max(0, held + need - guaranteed)) if preemptible else 0
        return Headroom(
            held + need <= limit, borrowed, held, guaranteed, limit, max(0, held + need - limit), False
        )

    def is_within_guarantee(self, team: int, model: str, need: int) -> bool:
        """Return True if the team would hold at most its guarantee after getting ``need`` more slots."""
        return self.held.get((team, model), 0) + need <= self.guarantee(team, model)

    def reclaimable_slots(self, team: int, model: str) -> int:
        """Return the borrowed slots that other teams may take back by evictions.

        The result is negative if the team holds less than its guarantee. Slots of work that is already
        stopping do not count. Slots that this plan placed do not count either: the new work cannot be evicted
        yet, and older work of the team must not be evicted because of the new work.
        """
        return self.held_at_start[team, model] - self.stopping[team, model] - self.guarantee(team, model)

    def quota_tier_of(self, team: int, model: str, need: int) -> int:
        """Return the quota tier of a start with ``need`` slots (see ``QUOTA_TIERS``)."""
        held, guaranteed = self.held.get((team, model), 0), self.guarantee(team, model)
        if held + need <= guaranteed:
            return WITHIN_GUARANTEE
        return BELOW_GUARANTEE if held < guaranteed else BORROWING

    def user_cap_left(self, user: int) -> int:
        """Return the slots that the user may add under the cap on one user."""
        cap = self.pool.policy.max_slots_per_user
        return UNLIMITED_SLOTS if cap is None else cap - self.held_by_user[user]
