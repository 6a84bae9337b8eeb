from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.core.model.quota_ledger import BORROWING, QUOTA_TIERS
from scheduler.core.model.snapshot import QueuedWorkload

LANES = INSIDE_RESERVATION, EVICTION_IN_PROGRESS, ORDINARY = (
    0,
    1,
    2,
)  # inside a reservation, with room being made, everybody else


BORROWER_TIER = ORDINARY * len(QUOTA_TIERS) + BORROWING  # the first part of a borrower's key


TurnKey = tuple[int, float, bool, int, int, int]


TeamQueueKey = tuple[int, int, int]  # lane, team, and which of its lines there


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
        return (
            TurnCriterion.OWN_TEAM
        )  # its key says otherwise, but it was not yet at the head of its team's line
    elif first.key[0] != second.key[0]:
        lanes = {0: TurnCriterion.RESERVATION, 1: TurnCriterion.ROOM_IS_MADE}
        return lanes.get(first.turn_lane) or (
            TurnCriterion.BELOW_GUARANTEE if first.claim else TurnCriterion.WITHIN_GUARANTEE
        )
    elif first.share != second.share:
        return TurnCriterion.FAIR_SHARE
    if first.aged != second.aged:
        return TurnCriterion.AGED
    if first.key[3] != second.key[3]:
        return TurnCriterion.SUBMITTED if first.aged else TurnCriterion.PLACE
    return TurnCriterion.NUMBER
