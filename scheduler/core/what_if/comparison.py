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
    """On what the comparison of two workloads rests."""

    THERE_FIRST = "there_first"  # it held its units before the other was asked for
    ORDER = "order"  # its turn comes first
    FIT = "fit"  # its turn comes later, but it could use what the other could not


@dataclass(frozen=True, slots=True)
class WorkloadComparison:
    """Why another workload goes, or went, before a waiting one. ``part`` and the turns are those of the cycle that would be
    run at this moment, the other one waiting again where it runs; None where a gate keeps one of them out of the line.
    ``without``: what the plan would say to the waiting one if the other was not there at all."""

    basis: ComparisonBasis
    part: TurnCriterion | None
    mine: QueueTurn | None
    theirs: QueueTurn | None
    without: Placement | Refusal


@dataclass(frozen=True, slots=True)
class PoolTurns:
    """One pool's line as it would be gone through now."""

    turns: dict[int, QueueTurn]

    def before(self, workload: int) -> list[tuple[QueueTurn, TurnCriterion]]:
        """Those whose turn comes before that of a waiting workload, and what decides; in order. Empty if it is not in line."""
        mine = self.turns.get(workload)
        if mine is None:
            return []
        return [(turn, deciding_criterion(turn, mine)) for turn in self.turns.values() if turn.at < mine.at]


def turns_in_pool(snapshot: Snapshot, pool: int, now: int) -> PoolTurns:
    """The line of a pool, as ``plan()`` goes through it."""
    turns: dict[int, QueueTurn] = {}
    for one in snapshot.pools:
        if one.id == pool:
            plan_pool(PoolSnapshot(snapshot, one), now, explain=True, turns=turns)
    return PoolTurns(turns)


def compare_workloads(
    snapshot: Snapshot, mine: int, other: int, now: int, other_submitted: int
) -> WorkloadComparison | None:
    """Why ``other``, which waits or runs in the same pool, and not ``mine``, which waits. ``other_submitted`` is when that
    was asked for (s). None when either is not there."""
    queued = next((q for q in snapshot.queued if q.id == mine), None)
    waits = next((q for q in snapshot.queued if q.id == other), None)
    runs = next((r for r in snapshot.running if r.id == other), None)
    if queued is None or (waits is None and runs is None):
        return None
    gone = replace(
        snapshot,
        queued=tuple(q for q in snapshot.queued if q.id != other),
        running=tuple(r for r in snapshot.running if r.id != other),
    )
    if runs is not None:
        again = replace(as_requeued(snapshot, runs, now), submitted=other_submitted)
        turns = turns_in_pool(replace(gone, queued=(*gone.queued, again)), queued.pool, now).turns
    else:
        turns = turns_in_pool(snapshot, queued.pool, now).turns
    my_turn, its_turn = turns.get(mine), turns.get(other)
    comes_first = my_turn is not None and its_turn is not None and its_turn.at < my_turn.at
    part = deciding_criterion(its_turn, my_turn) if comes_first and its_turn and my_turn else None
    if runs is not None and runs.started <= queued.submitted:
        basis = ComparisonBasis.THERE_FIRST
    else:
        basis = ComparisonBasis.ORDER if comes_first else ComparisonBasis.FIT
    return WorkloadComparison(basis, part, my_turn, its_turn, _answer(gone, mine, now))
