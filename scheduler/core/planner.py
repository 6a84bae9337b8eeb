"""The cycle: a snapshot in, a plan out.

Reservations that start get their units; then every waiting workload in its order is placed on free units, or else room
is made for it by eviction, or else it is refused with the reason, its place, and when it may expect to start.
"""

from __future__ import annotations

from scheduler.core.explain.refusals import RefusalRecorder
from scheduler.core.model.plan import Plan, Refusal
from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import QueuedWorkload, Snapshot
from scheduler.core.promises.reservation_binding import bind_reservations
from scheduler.core.queue.admission import admit
from scheduler.core.queue.turn import QueueTurn
from scheduler.core.queue.turn_order import TurnOrder
from scheduler.core.reasons import ReasonCode
from scheduler.core.workload_turn import WorkloadTurn


def plan(snapshot: Snapshot, now: int, *, explain: bool = True) -> Plan:
    """What to start, stop, bind and refuse at ``now``. The order of the snapshot's rows does not matter.

    ``explain=False`` gives the same decisions sooner, for simulations whose refusals nobody reads: of these only those
    are named for which units are kept or set aside.
    """
    pools = {pool.id: PoolSnapshot(snapshot, pool) for pool in snapshot.pools}
    homeless = [queued for queued in snapshot.queued if queued.pool not in pools]
    return plan_pools(snapshot.epoch, list(pools.values()), homeless, now, explain)


def plan_pools(
    epoch: int, pools: list[PoolSnapshot], homeless: list[QueuedWorkload], now: int, explain: bool
) -> Plan:
    """The same, from the facts of each pool; ``homeless`` is what waits in none of them."""
    boards = [plan_pool(facts, now, explain) for facts in pools]
    nowhere = [
        Refusal(queued.id, ReasonCode.NOT_YOUR_POOL, (("pool", queued.pool),))
        for queued in homeless
        if explain
    ]
    return Plan(
        epoch,
        placements=tuple(sorted((p for b in boards for p in b.placements), key=lambda p: p.workload)),
        evictions=tuple(sorted((e for b in boards for e in b.evictions), key=lambda e: e.workload)),
        refusals=tuple(sorted([r for b in boards for r in b.refusals] + nowhere, key=lambda r: r.workload)),
        bindings=tuple(sorted((x for b in boards for x in b.bindings), key=lambda x: x.reservation)),
        unbound=tuple(sorted((x for b in boards for x in b.unbound), key=lambda x: x.reservation)),
    )


def plan_pool(
    facts: PoolSnapshot,
    now: int,
    explain: bool,
    turns: dict[int, QueueTurn] | None = None,
    until: int | None = None,
) -> PoolState:
    """One pool's part of the plan, on its board. ``turns`` is filled with what each workload's turn was decided by;
    after the turn of the workload ``until``, who asks about that one alone need not know more."""
    board = PoolState(facts, facts.pool, now)
    promises = bind_reservations(board)
    line = TurnOrder(board, *admit(board, explain))
    line.turns = turns
    waiting = RefusalRecorder(board, promises, line.unit_seconds, explain)
    cycle = WorkloadTurn(board, line, waiting)
    for queued in line:
        if cycle.start_on_free_units(queued):
            line.started(queued)
        elif line.requeued:
            continue  # when those have had their turn who are guaranteed what it would borrow
        elif not cycle.evict_for_room(queued):
            waiting.refuse(queued)
            line.note_unplaced(queued, cycle.skip_scope(queued))
        if queued.id == until:
            break
    return board
