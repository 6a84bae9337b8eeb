"""The cycle: a snapshot in, a plan out.

Reservations that start get their units; then every waiting workload in its order is placed on free units, or else room
is made for it by eviction, or else it is refused with the reason, its place, and when it may expect to start.
"""

from __future__ import annotations

from scheduler.core.board import Board
from scheduler.core.decide import Cycle
from scheduler.core.fairshare import shares
from scheduler.core.gates import turn_away
from scheduler.core.holding import keep_reservations
from scheduler.core.model import Plan, Pool, Refusal, Snapshot
from scheduler.core.ordering import Line
from scheduler.core.reasons import Code
from scheduler.core.waiting import Waiting


def plan(snapshot: Snapshot, now: int, *, explain: bool = True) -> Plan:
    """What to start, stop, bind and refuse at ``now``. The order of the snapshot's rows does not matter.

    ``explain=False`` gives the same decisions sooner, for simulations whose refusals nobody reads: they say no more than
    that a workload waits.
    """
    boards = [plan_pool(snapshot, pool, now, explain) for pool in sorted(snapshot.pools, key=lambda p: p.id)]
    known = {pool.id for pool in snapshot.pools}
    homeless = [Refusal(q.id, Code.NOT_YOUR_POOL, (("pool", q.pool),)) for q in snapshot.queued if q.pool not in known]
    return Plan(
        snapshot.epoch,
        placements=tuple(sorted((p for b in boards for p in b.placements), key=lambda p: p.workload)),
        evictions=tuple(sorted((e for b in boards for e in b.evictions), key=lambda e: e.workload)),
        refusals=tuple(sorted([r for b in boards for r in b.refusals] + homeless, key=lambda r: r.workload)),
        bindings=tuple(sorted((x for b in boards for x in b.bindings), key=lambda x: x.reservation)),
        unbound=tuple(sorted((x for b in boards for x in b.unbound), key=lambda x: x.reservation)),
    )


def plan_pool(snapshot: Snapshot, pool: Pool, now: int, explain: bool) -> Board:
    """One pool's part of the plan, on its board."""
    board = Board(snapshot, pool, now)
    promises = keep_reservations(board)
    eligible = turn_away(board)
    waiting = Waiting(board, promises, explain)
    cycle = Cycle(board, waiting)
    line = Line(board, eligible, shares(snapshot, pool.id), {team.id: team.weight for team in snapshot.teams})
    for queued in line:
        if cycle.start_on_free_units(queued):
            line.started(queued)
        elif not cycle.make_room(queued):
            waiting.refuse(queued)
    return board
