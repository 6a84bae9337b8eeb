"""Find the units that a workload may take now.

A unit (a whole GPU, a MIG slice or a share) may be promised from a future time on: to a workload ahead in the
queue, to a maintenance window, or to a reservation. Another workload may take the unit before this time only
if it will also release the unit before this time.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Ints, Mask, intersection
from scheduler.core.model.pool_state import MAINTENANCE, QUEUE_HOLDS, RESERVATIONS, PoolState
from scheduler.core.model.running_work import NO_HOLDER
from scheduler.core.model.snapshot import QueuedWorkload
from scheduler.core.model.waiting_queue import expected_seconds

NO_PROMISES: frozenset[str] = frozenset()


ALL_PROMISES = frozenset({QUEUE_HOLDS, MAINTENANCE, RESERVATIONS})


def seconds_until_releasable(state: PoolState, queued: QueuedWorkload) -> int:
    """Return the seconds after which the units of a workload that starts now can be taken for a reservation.

    For non-preemptible work this is the runtime limit. Preemptible work can be evicted earlier: after the
    pool's minimum runtime plus notice and grace.
    """
    policy = state.policy
    if not queued.preemptible:
        return queued.max_runtime_seconds
    return min(
        queued.max_runtime_seconds,
        policy.minimum_runtime_seconds + policy.notice_seconds + policy.grace_seconds,
    )


def time_class(
    state: PoolState, queued: QueuedWorkload, ignoring: frozenset[str] = NO_PROMISES
) -> tuple[int, ...]:
    """Return, for each kind of promise, the bound before which no promise on the workload's units may begin.

    The kinds are queue holds, maintenance and reservations, in this order. To find the bound of a kind, take
    the time at which the workload would release its units. The bound is the start of the pool's first promise
    of this kind at or after that time. A bound of 0 means that no promise of the kind is an obstacle.
    Workloads with equal bounds form one time class: they may take the same units.

    The bounds of the kinds in ``ignoring`` are 0. With this parameter, a caller can find out which kind of
    promise prevents a start.
    """
    bounds = state.time_classes.get(queued.id)
    if bounds is None:
        bounds = state.time_classes[queued.id] = (
            state.next_promise_after(QUEUE_HOLDS, state.now + expected_seconds(queued)),
            state.next_promise_after(MAINTENANCE, state.now + queued.max_runtime_seconds),
            state.next_promise_after(RESERVATIONS, state.now + seconds_until_releasable(state, queued)),
        )
    if not ignoring:
        return bounds
    return tuple(
        0 if promise_kind in ignoring else bound
        for promise_kind, bound in zip(state.first_promise_by_kind, bounds, strict=True)
    )


def units_clear_of_promises(
    state: PoolState, queued: QueuedWorkload, ignoring: frozenset[str] = NO_PROMISES
) -> Mask | None:
    """Return the mask of units that the workload would release before a promise on them begins.

    None means all units. Promises of the kinds in ``ignoring`` are ignored.
    """
    return state.units_clear_of(time_class(state, queued, ignoring))


def available_units(
    state: PoolState, queued: QueuedWorkload, ignoring: frozenset[str] = NO_PROMISES
) -> Mask | None:
    """Return the mask of units that the workload may take now.

    None means every free unit. This is the common case, and no mask has to be computed for it. Promises of
    the kinds in ``ignoring`` are ignored.
    """
    if queued.reservation is not None:
        return intersection(
            (state.bound_to == queued.reservation) & (state.holder == NO_HOLDER), state.usable
        )
    mask = units_clear_of_promises(state, queued, ignoring)
    free = state.free
    if queued.id in state.workloads_with_earmarks:
        free = free | (
            (state.earmarked_for == queued.id)
            & (state.holder == NO_HOLDER)
            & state.usable
            & (state.bound_to == 0)
        )
    elif mask is None and not state.is_shared(queued.ask):
        return None
    if state.is_shared(queued.ask):
        free = intersection(free, units_without_other_teams_shares(state, queued.team))
    return free if mask is None else intersection(free, mask)


def units_without_other_teams_shares(state: PoolState, team: int) -> Mask:
    """Return the mask of units on GPUs that are not time-sliced by work of another team."""
    other_teams_gpus = [gpu for gpu, team_on_gpu in state.gpu_teams.items() if team_on_gpu != team]
    return ~np.isin(state.gpu_of, np.array(other_teams_gpus, dtype=np.int64))


def host_counts(state: PoolState, kind: int, available: Mask | None) -> Ints:
    """Return, for each host, the number of available units of a kind.

    If ``available`` is None, the result has the numbers of free units.
    """
    if available is None:
        return state.free_counts[kind]
    return np.bincount(
        state.host_of[units_of_kind_in(state, kind, available)], minlength=len(state.hosts)
    ).astype(np.int64)


def units_of_kind_in(state: PoolState, kind: int, mask: Mask) -> Ints:
    """Return the indices of the units of a kind that are in a mask.

    The function reads only the units of this kind, so it is fast for a rare kind.
    """
    units = state.hardware.units_of_kind[kind]
    return units[mask[units]]
