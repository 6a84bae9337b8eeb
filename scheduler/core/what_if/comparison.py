"""Find the reason why one workload starts, or has started, before another.

The turn of a workload is the point in a cycle (one run of the planner) at which the planner decides about it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from scheduler.core.model.plan import Placement, Refusal
from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.snapshot import Snapshot
from scheduler.core.planner import plan_pool
from scheduler.core.queue.turn import QueueTurn, TurnCriterion, deciding_criterion
from scheduler.core.what_if.preview import _answer
from scheduler.core.what_if.requeue import as_requeued


class ComparisonBasis(StrEnum):
    """The fact that explains why a workload A starts before a waiting workload B."""

    THERE_FIRST = "there_first"  # A already ran when B was submitted.
    ORDER = "order"  # A has its turn before B.
    FIT = "fit"  # A has its turn after B, but A could use units that B could not use.


@dataclass(frozen=True, slots=True)
class WorkloadComparison:
    """The reason why another workload starts, or has started, before a waiting workload.

    ``own_turn``, ``other_turn`` and ``criterion`` come from a plan at the present time. If the other workload
    is running, this plan treats it as waiting again. A turn is None if its workload is not admitted to the
    queue. ``criterion`` is the reason why the other workload has the earlier turn, or None if the waiting
    workload has the earlier turn. ``answer_without_other`` is the decision about the waiting workload in a
    plan without the other workload.
    """

    basis: ComparisonBasis
    criterion: TurnCriterion | None
    own_turn: QueueTurn | None
    other_turn: QueueTurn | None
    answer_without_other: Placement | Refusal


@dataclass(frozen=True, slots=True)
class PoolTurns:
    """The turns of all workloads of one pool, by workload id, in a plan at the present time."""

    turns: dict[int, QueueTurn]

    def before(self, workload: int) -> list[tuple[QueueTurn, TurnCriterion]]:
        """Return (turn, criterion) for all turns before the turn of a waiting workload, in order.

        The criterion is the reason why that turn comes first. The list is empty if the workload has no turn.
        """
        mine = self.turns.get(workload)
        if mine is None:
            return []
        return [
            (turn, deciding_criterion(turn, mine))
            for turn in self.turns.values()
            if turn.number < mine.number
        ]


def turns_in_pool(snapshot: Snapshot, pool: int, now: int) -> PoolTurns:
    """Return the turns of a pool's workloads, in the order in which the planner decides about them."""
    turns: dict[int, QueueTurn] = {}
    for pool_row in snapshot.pools:
        if pool_row.id == pool:
            plan_pool(PoolSnapshot(snapshot, pool_row), now, explain=True, recorded_turns=turns)
    return PoolTurns(turns)


# Not split: the function computes the fields of the result one after another.
def compare_workloads(
    snapshot: Snapshot, workload: int, other: int, now: int, other_submitted: int
) -> WorkloadComparison | None:
    """Return the reason why ``other`` starts, or has started, before ``workload``.

    ``workload`` waits. ``other`` waits or runs in the same pool, and ``other_submitted`` is its submit time
    (seconds since the epoch). Return None if one of the two is not in the snapshot.
    """
    queued = next((q for q in snapshot.queued if q.id == workload), None)
    queued_other = next((q for q in snapshot.queued if q.id == other), None)
    running_other = next((r for r in snapshot.running if r.id == other), None)
    if queued is None or (queued_other is None and running_other is None):
        return None
    overlay = replace(
        snapshot,
        queued=tuple(q for q in snapshot.queued if q.id != other),
        running=tuple(r for r in snapshot.running if r.id != other),
    )
    compared = snapshot
    if running_other is not None:
        requeued = replace(as_requeued(snapshot, running_other, now), submitted=other_submitted)
        compared = replace(overlay, queued=(*overlay.queued, requeued))
    turns = turns_in_pool(compared, queued.pool, now).turns
    own_turn, other_turn = turns.get(workload), turns.get(other)
    comes_first = own_turn is not None and other_turn is not None and other_turn.number < own_turn.number
    criterion = deciding_criterion(other_turn, own_turn) if comes_first and other_turn and own_turn else None
    if running_other is not None and running_other.started <= queued.submitted:
        basis = ComparisonBasis.THERE_FIRST
    else:
        basis = ComparisonBasis.ORDER if comes_first else ComparisonBasis.FIT
    return WorkloadComparison(basis, criterion, own_turn, other_turn, _answer(overlay, workload, now))
