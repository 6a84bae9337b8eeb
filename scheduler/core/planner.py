"""Plan one cycle: compute a plan from a snapshot. Begin reading at ``plan_pool``, which has all steps.

All functions are pure: no Django, no clock, no I/O, no randomness. Equal snapshots give equal plans, whatever
the order of their rows.
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
    """Return the placements, evictions, bindings and refusals for ``now`` (seconds since the epoch).

    ``explain=False`` makes the same decisions faster. It is for simulations, in which nobody reads the
    refusals. The plan then has only the refusals of workloads for which units are held, or for which other
    work is being evicted.
    """
    pools = {pool.id: PoolSnapshot(snapshot, pool) for pool in snapshot.pools}
    workloads_without_pool = [queued for queued in snapshot.queued if queued.pool not in pools]
    return plan_pools(snapshot.epoch, list(pools.values()), workloads_without_pool, now, explain)


def plan_pools(
    epoch: int,
    pools: list[PoolSnapshot],
    workloads_without_pool: list[QueuedWorkload],
    now: int,
    explain: bool,
) -> Plan:
    """Plan each pool and merge the results, each table sorted by id.

    If ``explain`` is True, workloads whose pool is unknown are refused with the code ``not_your_pool``.
    """
    states = [plan_pool(pool, now, explain) for pool in pools]
    without_pool = [
        Refusal(queued.id, ReasonCode.NOT_YOUR_POOL, (("pool", queued.pool),))
        for queued in workloads_without_pool
        if explain
    ]
    refusals = [row for state in states for row in state.refusals] + without_pool
    return Plan(
        epoch,
        placements=tuple(
            sorted((row for state in states for row in state.placements), key=lambda row: row.workload)
        ),
        evictions=tuple(
            sorted((row for state in states for row in state.evictions), key=lambda row: row.workload)
        ),
        refusals=tuple(sorted(refusals, key=lambda row: row.workload)),
        bindings=tuple(
            sorted((row for state in states for row in state.bindings), key=lambda row: row.reservation)
        ),
        unbound=tuple(
            sorted((row for state in states for row in state.unbound), key=lambda row: row.reservation)
        ),
    )


def plan_pool(
    pool: PoolSnapshot,
    now: int,
    explain: bool,
    recorded_turns: dict[int, QueueTurn] | None = None,
    last_workload: int | None = None,
) -> PoolState:
    """Plan one pool: decide for every reservation and every waiting workload.

    Return the pool's state, which contains the pool's part of the plan.

    The turn of a workload is the point at which the planner decides about it. If ``recorded_turns`` is given,
    each workload's turn is stored in it under the workload's id. If ``last_workload`` is given, planning
    stops after the turn of this workload, because later turns do not change its result.
    """
    state = PoolState(pool, now)
    # 1. Reservations that have started get their units. Preemptible work on these units is evicted in time.
    promises = bind_reservations(state)
    # 2. Workloads that could not start even if all units were free are refused, for example because of a
    # closed budget, missing hardware or a missing quota.
    eligible = admit(state, explain)
    # 3. In queue order, each workload is placed on free units; otherwise work is evicted for it; otherwise it
    # is refused. Units are held for the first refused workloads.
    order = TurnOrder(state, eligible, recorded_turns)
    refusals = RefusalRecorder(state, promises, eligible.expected_unit_seconds, explain)
    turn = WorkloadTurn(state, order, refusals)
    for workload in order:
        if not (turn.place(workload) or turn.was_requeued(workload) or turn.preempt_for(workload)):
            # 4. Each refusal gets its reason, its position in the queue and its expected start.
            turn.refuse(workload)
        if workload.id == last_workload and not order.requeued:
            break
    return state
