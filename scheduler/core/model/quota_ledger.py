"""Who may hold how much: guarantees, borrowing, caps, and what each team has used lately.

All amounts are slots (a whole GPU is ``SLOTS_PER_GPU``), per team and GPU model of one pool. A reservation counts as
held by its team from the moment its units are bound; work inside it is not counted again.
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
QUOTA_TIERS = WITHIN_GUARANTEE, BELOW_GUARANTEE, BORROWING = (
    0,
    1,
    2,
)  # what a start would be to its team's guarantee, in the order in which they go first


def decayed_use(
    slot_seconds: float, held_slots: int, elapsed_seconds: float, half_life_seconds: float
) -> float:
    """Decayed use after ``elapsed_seconds`` in which ``held_slots`` were held throughout."""
    kept: float = 0.5 ** (elapsed_seconds / half_life_seconds)
    return slot_seconds * kept + held_slots * half_life_seconds / math.log(2) * (1 - kept)


class Headroom(NamedTuple):
    """May a team hold so many slots more of a model? ``borrowed`` is the part above its guarantee. ``held`` is what counts
    against ``limit``: all of the team's work, or when ``firm`` only that which may not be evicted."""

    allowed: bool
    borrowed: int
    held: int
    guaranteed: int
    limit: int
    over: int  # slots too many
    firm: bool


class HeldSlots:
    """What the running work of each team and user holds, in slots."""

    def __init__(self) -> None:
        self.by_team: dict[TeamAndModel, int] = defaultdict(int)  # outside reservations
        self.firm: dict[TeamAndModel, int] = defaultdict(int)  # of that: work that may not be evicted
        self.leaving: dict[TeamAndModel, int] = defaultdict(int)  # of that: told to go
        self.by_user: dict[int, int] = defaultdict(int)  # reservations or not

    def add(self, running: RunningWorkload, model: str, slots: int) -> None:
        """Count so many slots of a model in that a workload holds, or out when negative."""
        self.by_user[running.user] += slots
        if running.reservation is None:
            claim = running.team, model
            self.by_team[claim] += slots
            self.firm[claim] += 0 if running.preemptible else slots
            self.leaving[claim] += slots if running.stopping else 0


class PoolQuotas:
    """What the teams of one pool may hold, in slots."""

    def __init__(self, pool: PoolInfo, quotas: Iterable[QuotaInfo]) -> None:
        self.guaranteed: dict[TeamAndModel, int] = {}
        self.limit: dict[TeamAndModel, int] = {}
        self.used_up: dict[TeamAndModel, QuotaInfo] = {}  # those whose GPU-hours of the period are
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
    """A promise of a team's own that has no units yet: from when until when (s) it takes how many slots of its guarantee."""

    start: int
    end: int
    slots: int
    reservation: int


@dataclass(slots=True)
class ReservedHeadroom:
    """Room within a team's limit that its work waits for, until its ``blockers`` end: from ``start`` (s) on, work behind it
    may add ``left`` slots. ``firm``: room within the guarantee for what may not be evicted; what may be is no matter."""

    workload: int
    start: int
    blockers: tuple[int, ...]
    left: int
    firm: bool


class QuotaLedger:
    """What each team and user of one pool holds, and may hold, while a plan is being made."""

    def __init__(self, pool: PoolInfo, quotas: PoolQuotas, held: HeldSlots) -> None:
        self.pool = pool
        self.guaranteed, self.limit, self.teams_with_quota = quotas.guaranteed, quotas.limit, quotas.teams
        self.used_up = quotas.used_up
        self.held = held.by_team.copy()  # with bound reservations, and what this plan gives out
        self.firm = held.firm.copy()  # of that: reservations and work that may not be evicted
        self.standing = held.by_team.copy()  # held before this plan gave anything out
        self.leaving = held.leaving.copy()
        self.held_by_user = held.by_user.copy()
        self.version: dict[int, int] = defaultdict(int)  # of what a team holds: it counts the changes
        self._rooms: dict[int, dict[tuple[str, int, bool, bool], Headroom]] = defaultdict(
            dict
        )  # by team, while it is so
        self.kinds_within_limits_cache: dict[int, dict[Hashable, list[int]]] = defaultdict(
            dict
        )  # likewise, of who asks for what
        self.coming: dict[TeamAndModel, list[UpcomingReservation]] = {}  # few teams have any
        self.max_firm_beside_cache: dict[
            TeamAndModel, list[tuple[UpcomingReservation, int]]
        ] = {}  # see ``limits``
        self.reserved_headroom: dict[TeamAndModel, ReservedHeadroom] = {}
        self.reserved_user_headroom: dict[
            int, ReservedHeadroom
        ] = {}  # the same within what one person may hold

    def add_held_slots(self, team: int, model: str, slots: int, preemptible: bool) -> None:
        """A team gets slots, or is promised them."""
        self.held[team, model] += slots
        self.firm[team, model] += 0 if preemptible else slots
        self.version[team] += 1
        self._rooms[team].clear()
        self.kinds_within_limits_cache[team].clear()

    def leaves_headroom(self, team: int, model: str, slots: int, end: int, preemptible: bool) -> bool:
        """Would work that is over at ``end`` leave the room that work of its team in front of it waits for?"""
        kept = self.reserved_headroom.get((team, model))
        return kept is None or end <= kept.start or slots <= kept.left or (kept.firm and preemptible)

    def leaves_user_headroom(self, user: int, slots: int, end: int) -> bool:
        """Would work that is over at ``end`` leave the room within its owner's cap that work of theirs in front of it waits for?"""
        kept = self.reserved_user_headroom.get(user)
        return kept is None or end <= kept.start or slots <= kept.left

    def use_user_headroom(self, user: int, slots: int, end: int) -> None:
        """Work of a person that is over at ``end`` was given so many slots."""
        kept = self.reserved_user_headroom.get(user)
        if kept is not None and end > kept.start:
            kept.left -= slots

    def use_headroom(self, team: int, model: str, slots: int, end: int, preemptible: bool) -> None:
        """Work that is over at ``end`` was given so many slots."""
        kept = self.reserved_headroom.get((team, model))
        if kept is not None and end > kept.start and not (kept.firm and preemptible):
            kept.left -= slots

    def bind(self, team: int, model: str, slots: int) -> None:
        """A team's reservation has its units."""
        self.add_held_slots(team, model, slots, preemptible=False)
        self.standing[team, model] += slots

    def guarantee(self, team: int, model: str) -> int:
        """Slots the team may always have; a static pool is wholly its owner's."""
        if self.pool.kind is PoolKind.STATIC:
            return UNLIMITED_SLOTS if team == self.pool.team else 0
        return self.guaranteed.get((team, model), 0)

    def guarantee_at(self, team: int, model: str, moment: int) -> int:
        """The same at a time to come: GPU-hours that are used up now are used up until their period is over."""
        quota = self.used_up.get((team, model))
        if quota is not None and quota.used_up_until is not None and moment >= quota.used_up_until:
            return quota.guaranteed_again
        return self.guarantee(team, model)

    def max_slots(self, team: int, model: str) -> int:
        """Slots the team may hold at most: its guarantee, and what it may borrow above that."""
        return (
            self.guarantee(team, model)
            if self.pool.kind is PoolKind.STATIC
            else self.limit.get((team, model), 0)
        )

    def max_slots_at(self, team: int, model: str, moment: int) -> int:
        """The same at a time to come."""
        quota = self.used_up.get((team, model))
        if quota is None or quota.used_up_until is None or moment < quota.used_up_until:
            return self.max_slots(team, model)
        return (
            UNLIMITED_SLOTS
            if quota.borrow_limit_again is None
            else quota.guaranteed_again + quota.borrow_limit_again
        )

    def room(self, team: int, model: str, need: int, preemptible: bool, may_borrow: bool) -> Headroom:
        """May ``need`` slots be added? Work that is not preemptible has to fit the guarantee together with what else of
        the team is not; the team's preemptible work is then what borrows, and what others may reclaim. Kept until the team is given
        more: a turn asks several times, and its equals ask again."""
        known, key = self._rooms[team], (model, need, preemptible, may_borrow)
        room = known.get(key)
        if room is None:
            room = known[key] = self._room(team, model, need, preemptible, may_borrow)
        return room

    def _room(self, team: int, model: str, need: int, preemptible: bool, may_borrow: bool) -> Headroom:
        claim = team, model
        held, firm = self.held.get(claim, 0), self.firm.get(claim, 0)
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
        """Would the team, with ``need`` slots more, still hold no more than it is guaranteed?"""
        return self.held.get((team, model), 0) + need <= self.guarantee(team, model)

    def excess(self, team: int, model: str) -> int:
        """Slots above the guarantee that are not already leaving: what others may reclaim. What this plan gives the
        team does not count: it could not be told to go yet, and older work must not go in its stead."""
        return self.standing[team, model] - self.leaving[team, model] - self.guarantee(team, model)

    def quota_tier_of(self, team: int, model: str, need: int) -> int:
        """WITHIN its guarantee with ``need`` slots more, BELOW it now and above it then, or BORROWING."""
        held, guaranteed = self.held.get((team, model), 0), self.guarantee(team, model)
        if held + need <= guaranteed:
            return WITHIN_GUARANTEE
        return BELOW_GUARANTEE if held < guaranteed else BORROWING

    def user_cap_left(self, user: int) -> int:
        cap = self.pool.policy.most_slots_per_user
        return UNLIMITED_SLOTS if cap is None else cap - self.held_by_user[user]
