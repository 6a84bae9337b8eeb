"""Describe a workload's turn in the queue, and find the criterion that puts one turn before another.

A cycle is one run of the planner. It decides about one workload after another. The turn of a workload is the
point in this sequence at which the planner decides about it. A team's guarantee is the number of slots that
it can always have. A team borrows if it holds more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.core.model.quota_ledger import BORROWING, QUOTA_TIERS
from scheduler.core.model.snapshot import QueuedWorkload

# The lanes of the queue. All work of one lane comes before all work of the next lane:
# - work inside a reservation,
# - work for which the planner has evicted other work,
# - all other work.
LANES = INSIDE_RESERVATION, EVICTION_IN_PROGRESS, ORDINARY = (
    0,
    1,
    2,
)


BORROWER_TIER = ORDINARY * len(QUOTA_TIERS) + BORROWING  # the first element of the TurnKey of borrowing work


TurnKey = tuple[int, float, bool, int, int, int]


TeamQueueKey = tuple[int, int, int]  # (lane, team, number of the team's queue in that lane)


class TurnCriterion(StrEnum):
    """The criterion that puts a workload A before a workload B: the first criterion in which they differ."""

    RESERVATION = "reservation"  # A runs inside a reservation, and B does not.
    ROOM_IS_MADE = "room_is_made"  # Other work was evicted for A, and not for B.
    WITHIN_GUARANTEE = "within_guarantee"  # A is wholly within its team's guarantee, and B is not.
    BELOW_GUARANTEE = "below_guarantee"  # A's team is below its guarantee, and B would only borrow.
    FAIR_SHARE = "fair_share"  # Both borrow. A's team has used less in the past, relative to its weight.
    OWN_TEAM = "own_team"  # At A's turn, B was still behind other work of B's own team.
    PRIORITY = "priority"  # Both are of one team, and A has the higher priority.
    AGED = "aged"  # A has waited too long, and B has not.
    SUBMITTED = "submitted"  # Both have waited too long, and A was submitted earlier.
    PLACE = "place"  # A has the earlier effective submit time (submit time plus an amount for long work).
    NUMBER = "number"  # All other criteria are equal, and A has the lower id.


@dataclass(frozen=True, slots=True)
class QueueTurn:
    """The values that decided when a workload had its turn in one cycle.

    ``number`` is 1 for the first turn of the cycle. ``key`` is the sort key of ``TurnOrder``: the lower key
    comes first.
    """

    number: int
    queued: QueuedWorkload
    key: TurnKey
    waited_too_long: bool
    team_queue: TeamQueueKey

    @property
    def turn_lane(self) -> int:
        """Return the lane: 0 inside a reservation, 1 if work was evicted for it, 2 for all other work."""
        return self.key[0] // len(QUOTA_TIERS)

    @property
    def quota_tier(self) -> int:
        """Return the quota tier.

        It is 0 if the work is within the guarantee of its team, 1 if the team is below its guarantee but
        would exceed it, and 2 if the work is only borrowed. In lanes 0 and 1 it is always 0.
        """
        return self.key[0] % len(QUOTA_TIERS)

    @property
    def share(self) -> float:
        """Return the team's decayed use divided by its weight, in slot-seconds.

        Decayed use is past use that halves with every half-life. The result is 0 for work that is not wholly
        borrowed.
        """
        return self.key[1]


def deciding_criterion(first: QueueTurn, second: QueueTurn) -> TurnCriterion:
    """Return the criterion that put ``first`` before ``second``.

    Both turns are of one cycle, and ``first`` has the lower number.
    """
    if first.team_queue == second.team_queue:
        if first.queued.priority != second.queued.priority:
            return TurnCriterion.PRIORITY
    elif first.key > second.key:
        # ``second`` has the better (lower) key, but it was not yet at the head of its team's queue.
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
