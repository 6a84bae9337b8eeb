"""Describe a workload's turn in the queue, and find the criterion that puts one turn before another."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.core.model.quota_ledger import BORROWING, QUOTA_TIERS
from scheduler.core.model.snapshot import QueuedWorkload

# Lanes, in order: work inside a reservation; work for which an eviction is in progress; all other work.
LANES = INSIDE_RESERVATION, EVICTION_IN_PROGRESS, ORDINARY = (
    0,
    1,
    2,
)


BORROWER_TIER = ORDINARY * len(QUOTA_TIERS) + BORROWING  # first element of a borrower's key


TurnKey = tuple[int, float, bool, int, int, int]


TeamQueueKey = tuple[int, int, int]  # (lane, team, number of the team's queue in that lane)


class TurnCriterion(StrEnum):
    """The criterion that puts one workload before another: the first criterion in which the two differ.

    In the comments, "it" is the first workload, and "the other" is the second.
    """

    RESERVATION = "reservation"  # runs inside a reservation
    ROOM_IS_MADE = "room_is_made"  # an eviction for it is in progress
    WITHIN_GUARANTEE = "within_guarantee"  # stays within its team's guarantee; the other does not
    BELOW_GUARANTEE = "below_guarantee"  # its team is below its guarantee; the other would only borrow
    FAIR_SHARE = "fair_share"  # both borrow; its team has less decayed use by weight
    OWN_TEAM = "own_team"  # until then, the other was behind work of its own team
    PRIORITY = "priority"  # both are of one team; it has the higher priority
    AGED = "aged"  # waited too long; the other did not
    SUBMITTED = "submitted"  # both waited too long; it was submitted earlier
    PLACE = "place"  # it has the earlier effective submit time
    NUMBER = "number"  # all else is equal; it has the lower id


@dataclass(frozen=True, slots=True)
class QueueTurn:
    """The values that decided a workload's turn in one cycle, at the time of this turn.

    ``number`` counts the turns from 1. ``key`` is the workload's place in the order of ``TurnOrder``.
    """

    number: int
    queued: QueuedWorkload
    key: TurnKey
    waited_too_long: bool
    team_queue: TeamQueueKey

    @property
    def turn_lane(self) -> int:
        """Return the lane: 0 inside a reservation, 1 with an eviction in progress, 2 all other work."""
        return self.key[0] // len(QUOTA_TIERS)

    @property
    def quota_tier(self) -> int:
        """Return the quota tier: 0 within the guarantee, 1 for a team below its guarantee, 2 for borrowing.
        Outside lane 2 it is 0.
        """
        return self.key[0] % len(QUOTA_TIERS)

    @property
    def share(self) -> float:
        """Return the team's decayed use by weight, in slot-seconds. It is 0 for work that does not borrow."""
        return self.key[1]


def deciding_criterion(first: QueueTurn, second: QueueTurn) -> TurnCriterion:
    """Return the criterion that put ``first`` before ``second`` in the same cycle (``first.number <
    second.number``).
    """
    if first.team_queue == second.team_queue:
        if first.queued.priority != second.queued.priority:
            return TurnCriterion.PRIORITY
    elif first.key > second.key:
        # ``first`` has the greater key, but ``second`` was not yet at the head of its team's queue.
        return TurnCriterion.OWN_TEAM
    elif first.key[0] != second.key[0]:
        lanes = {0: TurnCriterion.RESERVATION, 1: TurnCriterion.ROOM_IS_MADE}
        return lanes.get(first.turn_lane) or (
            TurnCriterion.BELOW_GUARANTEE if first.quota_tier else TurnCriterion.WITHIN_GUARANTEE
        )
    elif first.share != second.share:
        return TurnCriterion.FAIR_SHARE
    if first.waited_too_long != second.waited_too_long:
        return TurnCriterion.AGED
    if first.key[3] != second.key[3]:
        return TurnCriterion.SUBMITTED if first.waited_too_long else TurnCriterion.PLACE
    return TurnCriterion.NUMBER
