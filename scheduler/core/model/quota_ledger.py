"""Compute the limits of teams and users: guarantees, borrowing, caps, and decayed use.

All amounts are slots (a whole GPU has ``SLOTS_PER_GPU``), per team and GPU model of one pool. A reservation's
slots count as held by its team once its units are bound. Work inside the reservation is not counted again.
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
# The tiers of a start, in queue order: within the guarantee; partly borrowed, by a team below its guarantee;
# only borrowed.
QUOTA_TIERS = WITHIN_GUARANTEE, BELOW_GUARANTEE, BORROWING = (
    0,
    1,
    2,
)


def decayed_use(
    slot_seconds: float, held_slots: int, elapsed_seconds: float, half_life_seconds: float
) -> float:
    """Return the decayed use after ``elapsed_seconds`` in which ``held_slots`` were held throughout."""
    remaining: float = 0.5 ** (elapsed_seconds / half_life_seconds)
    return slot_seconds * remaining + held_slots * half_life_seconds / math.log(2) * (1 - remaining)


class Headroom(NamedTuple):
    """The answer to a request of a team for more slots of a model.

    ``borrowed`` is the part of these slots above the team's guarantee. ``held`` counts against ``limit``: the
    slots of all of the team's work, or, if ``non_preemptible_only``, only of its non-preemptible work.
    """

    allowed: bool
    borrowed: int
    held: int
    guaranteed: int
    limit: int
    over: int  # slots above the limit
    non_preemptible_only: bool


class HeldSlots:
    """The slots that the running work of each team and user holds."""

    def __init__(self) -> None:
        self.by_team: dict[TeamAndModel, int] = defaultdict(int)  # outside reservations
        # the part of ``by_team`` that non-preemptible work holds
        self.non_preemptible: dict[TeamAndModel, int] = defaultdict(int)
        # the part of ``by_team`` that stopping work holds
        self.stopping: dict[TeamAndModel, int] = defaultdict(int)
        self.by_user: dict[int, int] = defaultdict(int)  # inside and outside reservations

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
        self.used_up: dict[TeamAndModel, QuotaInfo] = {}  # quotas whose GPU-hours of the period are used up
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
    """A team's reservation that has no units yet. It takes ``slots`` of the team's guarantee from ``start``
    to ``end`` (s).
    """

    start: int
    end: int
    slots: int
    reservation: int


@dataclass(slots=True)
class ReservedHeadroom:
    """Headroom within a team's or user's limit that is reserved for a waiting workload until its
    ``blockers`` end.

    From ``start`` (s) on, work behind this workload may add ``left`` slots in total. If
    ``non_preemptible_only``, preemptible work is not restricted.
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
        self.held = held.by_team.copy()  # including bound reservations and the placements of this plan
        # the part of ``held`` in reservations and non-preemptible work
        self.non_preemptible = held.non_preemptible.copy()
        self.held_at_start = held.by_team.copy()  # held before this plan's placements
        self.stopping = held.stopping.copy()
        self.held_by_user = held.by_user.copy()
        self.change_count: dict[int, int] = defaultdict(int)  # by team: number of changes of its held slots
        # Cached by team, and cleared when the team gets slots.
        self._rooms: dict[int, dict[tuple[str, int, bool, bool], Headroom]] = defaultdict(dict)
        # Cached by team, and cleared when the team gets slots.
        self.kinds_within_limits_cache: dict[int, dict[Hashable, list[int]]] = defaultdict(dict)
        self.upcoming_reservations: dict[TeamAndModel, list[UpcomingReservation]] = {}  # few teams have any
        # Filled by ``quota_limits``.
        self.max_firm_beside_cache: dict[TeamAndModel, list[tuple[UpcomingReservation, int]]] = {}
        self.reserved_headroom: dict[TeamAndModel, ReservedHeadroom] = {}
        self.reserved_user_headroom: dict[int, ReservedHeadroom] = {}  # within the cap on one user

    def add_held_slots(self, team: int, model: str, slots: int, preemptible: bool) -> None:
        """Count slots that a team gets or is promised."""
        self.held[team, model] += slots
        self.non_preemptible[team, model] += 0 if preemptible else slots
        self.change_count[team] += 1
        self._rooms[team].clear()
        self.kinds_within_limits_cache[team].clear()

    def leaves_headroom(self, team: int, model: str, slots: int, end: int, preemptible: bool) -> bool:
        """Return True if work that ends at ``end`` does not use the headroom reserved for its team's work
        ahead in the queue.
        """
        reserved = self.reserved_headroom.get((team, model))
        return (
            reserved is None
            or end <= reserved.start
            or slots <= reserved.left
            or (reserved.non_preemptible_only and preemptible)
        )

    def leaves_user_headroom(self, user: int, slots: int, end: int) -> bool:
        """Return True if work that ends at ``end`` does not use the headroom within the user cap that is
        reserved for work ahead in the queue.
        """
        reserved = self.reserved_user_headroom.get(user)
        return reserved is None or end <= reserved.start or slots <= reserved.left

    def use_user_headroom(self, user: int, slots: int, end: int) -> None:
        """Subtract started work that ends at ``end`` from ``left`` of the user's reserved headroom."""
        reserved = self.reserved_user_headroom.get(user)
        if reserved is not None and end > reserved.start:
            reserved.left -= slots

    def use_headroom(self, team: int, model: str, slots: int, end: int, preemptible: bool) -> None:
        """Subtract started work that ends at ``end`` from ``left`` of the team's reserved headroom."""
        reserved = self.reserved_headroom.get((team, model))
        if (
            reserved is not None
            and end > reserved.start
            and not (reserved.non_preemptible_only and preemptible)
        ):
            reserved.left -= slots

    def bind(self, team: int, model: str, slots: int) -> None:
        """Count slots that are bound to a reservation of the team."""
        self.add_held_slots(team, model, slots, preemptible=False)
        self.held_at_start[team, model] += slots

    def guarantee(self, team: int, model: str) -> int:
        """Return the slots that the team is guaranteed. The owner of a static pool is guaranteed the whole
        pool.
        """
        if self.pool.kind is PoolKind.STATIC:
            return UNLIMITED_SLOTS if team == self.pool.team else 0
        return self.guaranteed.get((team, model), 0)

    def guaranteed_slots_at(self, team: int, model: str, time: int) -> int:
        """Return the slots that the team is guaranteed at a future time: used-up GPU-hours are available
        again in the next period.
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
        """Return the team's headroom for ``need`` more slots. The result is cached until the team gets slots,
        because equal asks are frequent.

        Non-preemptible work must fit into the guarantee together with the team's other non-preemptible work.
        The team's preemptible work is not counted in this check. If preemptible and non-preemptible work
        together exceed the guarantee, other teams may reclaim the preemptible work.
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
        """Return True if the team, with ``need`` more slots, holds at most its guarantee."""
        return self.held.get((team, model), 0) + need <= self.guarantee(team, model)

    def reclaimable_slots(self, team: int, model: str) -> int:
        """Return the slots above the guarantee that are not already stopping. Other teams may reclaim these
        slots.

        This plan's placements do not count: they cannot be evicted yet, and older work must not be evicted
        instead of them.
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
