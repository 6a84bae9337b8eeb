"""The cycle: a snapshot in, a plan out.

Reservations that start get their units; then every waiting workload in its order is placed on free units, or else room
is made for it by eviction, or else it is refused with the reason, its place, and when it may expect to start.
"""

from __future__ import annotations

from scheduler.core.board import Board
from scheduler.core.decide import Cycle
from scheduler.core.gates import turn_away
from scheduler.core.holding import keep_reservations
from scheduler.core.model import Plan, Queued, Refusal, Snapshot
from scheduler.core.ordering import Line, Turn
from scheduler.core.poolfacts import PoolFacts
from scheduler.core.reasons import Code
from scheduler.core.waiting import Waiting


def plan(snapshot: Snapshot, now: int, *, explain: bool = True) -> Plan:
    """What to start, stop, bind and refuse at ``now``. The order of the snapshot's rows does not matter.

    ``explain=False`` gives the same decisions sooner, for simulations whose refusals nobody reads: of these only those
    are named for which units are kept or set aside.
    """
    pools = {pool.id: PoolFacts(snapshot, pool) for pool in snapshot.pools}
    homeless = [queued for queued in snapshot.queued if queued.pool not in pools]
    return plan_pools(snapshot.epoch, list(pools.values()), homeless, now, explain)


def plan_pools(epoch: int, pools: list[PoolFacts], homeless: list[Queued], now: int, explain: bool) -> Plan:
    """The same, from the facts of each pool; ``homeless`` is what waits in none of them."""
    boards = [plan_pool(facts, now, explain) for facts in pools]
    nowhere = [Refusal(queued.id, Code.NOT_YOUR_POOL, (("pool", queued.pool),)) for queued in homeless if explain]
    return Plan(
        epoch,
        placements=tuple(sorted((p for b in boards for p in b.placements), key=lambda p: p.workload)),
        evictions=tuple(sorted((e for b in boards for e in b.evictions), key=lambda e: e.workload)),
        refusals=tuple(sorted([r for b in boards for r in b.refusals] + nowhere, key=lambda r: r.workload)),
        bindings=tuple(sorted((x for b in boards for x in b.bindings), key=lambda x: x.reservation)),
        unbound=tuple(sorted((x for b in boards for x in b.unbound), key=lambda x: x.reservation)),
    )


def plan_pool(
    facts: PoolFacts, now: int, explain: bool, turns: dict[int, Turn] | None = None, until: int | None = None
) -> Board:
    """One pool's part of the plan, on its board. ``turns`` is filled with what each workload's turn was decided by;
    after the turn of the workload ``until``, who asks about that one alone need not know more."""
    board = Board(facts, facts.pool, now)
    promises = keep_reservations(board)
    line = Line(board, *turn_away(board, explain))
    line.turns = turns
    waiting = Waiting(board, promises, line.unit_seconds, explain)
    cycle = Cycle(board, line, waiting)
    for queued in line:
        if cycle.start_on_free_units(queued):
            line.started(queued)
        elif line.comes_again:
            continue  # when those have had their turn who are guaranteed what it would borrow
        elif not cycle.make_room(queued):
            waiting.refuse(queued)
            line.got_nothing(queued, cycle.who_else_gets_nothing(queued))
        if queued.id == until:
            break
    return board
