"""Find the units that a workload may take now: free units that the workload releases before others are
promised them.
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
    """Return the most seconds for which a workload that starts now can keep units that others need.

    Preemptible work can be evicted before its runtime limit.
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
    """Return, for each kind of promise, the start of the first promise after the workload's end.

    The workload may take units whose promises begin at these bounds or later; 0 means no bound. Workloads of
    one class may take the same units.

    ``ignoring``: the kinds of promises to ignore, so that a caller can find the obstacle.
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
    """Return the units that the workload would leave before they are promised to others; None means
    all units.
    """
    return state.units_clear_of(time_class(state, queued, ignoring))


def available_units(
    state: PoolState, queued: QueuedWorkload, ignoring: frozenset[str] = NO_PROMISES
) -> Mask | None:
    """Return the units that the workload may take now. None means every free unit, which is the
    common and cheap case.
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
    """Return the units on GPUs without time-sliced work of another team."""
    other_teams_gpus = [gpu for gpu, team_on_gpu in state.gpu_teams.items() if team_on_gpu != team]
    return ~np.isin(state.gpu_of, np.array(other_teams_gpus, dtype=np.int64))


def host_counts(state: PoolState, kind: int, available: Mask | None) -> Ints:
    """Return the number of available units of a kind on each host."""
    if available is None:
        return state.free_counts[kind]
    return np.bincount(
        state.host_of[units_of_kind_in(state, kind, available)], minlength=len(state.hosts)
    ).astype(np.int64)


def units_of_kind_in(state: PoolState, kind: int, mask: Mask) -> Ints:
    """Return the units of a kind that are in a mask.

    This is faster than a search over all units, especially for a rare kind.
    """
    units = state.hardware.units_of_kind[kind]
    return units[mask[units]]
