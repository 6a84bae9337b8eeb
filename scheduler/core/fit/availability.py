from __future__ import annotations

import numpy as np

from scheduler.core.arrays import Ints, Mask, intersection
from scheduler.core.model.pool_state import MAINTENANCE, QUEUE_HOLDS, RESERVATIONS, PoolState
from scheduler.core.model.running_work import NO_HOLDER
from scheduler.core.model.snapshot import QueuedWorkload
from scheduler.core.model.waiting_queue import expected_seconds

NO_PROMISES: frozenset[str] = frozenset()


ALL_PROMISES = frozenset({QUEUE_HOLDS, MAINTENANCE, RESERVATIONS})


def seconds_until_releasable(board: PoolState, queued: QueuedWorkload) -> int:
    """Seconds after which a workload that starts now can be off its units: preemptible work may be told to go."""
    policy = board.policy
    if not queued.preemptible:
        return queued.max_runtime_seconds
    return min(
        queued.max_runtime_seconds,
        policy.minimum_runtime_seconds + policy.notice_seconds + policy.grace_seconds,
    )


def time_class(
    board: PoolState, queued: QueuedWorkload, ignoring: frozenset[str] = NO_PROMISES
) -> tuple[int, ...]:
    """Which promises a workload's times would run into: workloads of one class may take the same units.

    ``ignoring`` leaves out HOLDS, MAINTENANCE or RESERVATIONS, to find out which of them is in the way.
    """
    known = board.time_classes.get(queued.id)
    if known is None:
        known = board.time_classes[queued.id] = (
            board.next_promise_after(QUEUE_HOLDS, board.now + expected_seconds(queued)),
            board.next_promise_after(MAINTENANCE, board.now + queued.max_runtime_seconds),
            board.next_promise_after(RESERVATIONS, board.now + seconds_until_releasable(board, queued)),
        )
    if not ignoring:
        return known
    return tuple(
        0 if sort in ignoring else bound
        for sort, bound in zip(board.first_promise_by_kind, known, strict=True)
    )


def units_clear_of_promises(
    board: PoolState, queued: QueuedWorkload, ignoring: frozenset[str] = NO_PROMISES
) -> Mask | None:
    """The units a workload would be off before they are promised to others; None when that is all of them."""
    return board.units_clear_of(time_class(board, queued, ignoring))


def available_units(
    board: PoolState, queued: QueuedWorkload, ignoring: frozenset[str] = NO_PROMISES
) -> Mask | None:
    """The units a workload may take now; None stands for every free unit (the common case, which is then cheap)."""
    if queued.reservation is not None:
        return intersection((board.bound == queued.reservation) & (board.holder == NO_HOLDER), board.usable)
    mask = units_clear_of_promises(board, queued, ignoring)
    free = board.free
    if queued.id in board.workloads_with_earmarks:
        free = free | (
            (board.kept == queued.id) & (board.holder == NO_HOLDER) & board.usable & (board.bound == 0)
        )
    elif mask is None and not board.is_shared(queued.ask):
        return None
    if board.is_shared(queued.ask):
        free = intersection(free, units_without_other_teams_shares(board, queued.team))
    return free if mask is None else intersection(free, mask)


def units_without_other_teams_shares(board: PoolState, team: int) -> Mask:
    """Units on GPUs that no other team has time-sliced work on."""
    foreign = [gpu for gpu, holder in board.gpu_teams.items() if holder != team]
    return ~np.isin(board.gpu_of, np.array(foreign, dtype=np.int64))


def host_counts(board: PoolState, kind: int, available: Mask | None) -> Ints:
    """How many takeable units of a kind each host has."""
    if available is None:
        return board.counts[kind]
    return np.bincount(
        board.host_of[units_of_kind_in(board, kind, available)], minlength=len(board.hosts)
    ).astype(np.int64)


def units_of_kind_in(board: PoolState, kind: int, mask: Mask) -> Ints:
    """The units of a kind that are in a mask. Sooner than to look at all units, most of all where the kind has few."""
    units = board.ground.units_of_kind[kind]
    return units[mask[units]]
