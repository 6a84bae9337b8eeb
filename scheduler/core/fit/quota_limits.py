"""What a workload may have, whatever is free: quota, caps, the room kept for who is ahead of it, spare capacity."""

from __future__ import annotations

from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.quota_ledger import UNLIMITED_SLOTS, Headroom, TeamAndModel, UpcomingReservation
from scheduler.core.model.running_work import PREEMPTIBLE, RESERVATION, UNTIL
from scheduler.core.model.snapshot import Priority, QueuedWorkload
from scheduler.core.model.waiting_queue import expected_seconds


def headroom_for(board: PoolState, queued: QueuedWorkload, kind: int) -> Headroom:
    """What quota leaves for a workload on units of one kind; inside a reservation it is the reservation that counts."""
    if queued.reservation is not None:
        return Headroom(True, 0, 0, 0, UNLIMITED_SLOTS, 0, False)
    need, model = board.slots_needed(queued.ask, kind), board.kinds[kind].model
    return board.ledger.room(queued.team, model, need, queued.preemptible, queued.may_borrow)


def within_caps(board: PoolState, queued: QueuedWorkload, kind: int) -> bool:
    """The caps on one user and on one workload."""
    if not within_workload_cap(board, queued, kind):
        return False
    if board.policy.most_slots_per_user is None:
        return True
    return board.slots_needed(queued.ask, kind) <= board.ledger.user_cap_left(queued.user)


def within_workload_cap(board: PoolState, queued: QueuedWorkload, kind: int) -> bool:
    """The cap on one workload."""
    cap = board.policy.most_slots_per_workload
    return cap is None or board.slots_needed(queued.ask, kind) <= cap


def kinds_within_limits(board: PoolState, queued: QueuedWorkload) -> list[int]:
    """The kinds that quota and caps let a workload have, in its order; equals are answered once while their team holds the
    same."""
    ask = board.wanted(queued.ask)
    alike = queued.reservation is None and board.policy.most_slots_per_user is None
    known, key = (
        board.ledger.kinds_within_limits_cache[queued.team],
        (ask.number, queued.preemptible, queued.may_borrow),
    )
    kinds = known.get(key) if alike else None
    if kinds is None:
        kinds = [
            k for k in ask.kinds if headroom_for(board, queued, k).allowed and within_caps(board, queued, k)
        ]
        if alike:
            known[key] = kinds
    return kinds


def leaves_headroom(board: PoolState, queued: QueuedWorkload, kind: int) -> bool:
    """Would it leave the room within its team's limit, and its owner's cap, that work of theirs in front of it waits for?"""
    ledger, model = board.ledger, board.kinds[kind].model
    if ledger.reserved_user_headroom and not leaves_user_headroom(board, queued, kind):
        return False
    if (
        not queued.preemptible
        and ledger.coming
        and conflicting_own_reservation(board, queued, kind) is not None
    ):
        return False
    if (queued.team, model) not in ledger.reserved_headroom:
        return True
    if queued.reservation is not None or queued.id in board.workloads_with_earmarks:
        return True
    end = board.now + expected_seconds(queued)
    return ledger.leaves_headroom(
        queued.team, model, board.slots_needed(queued.ask, kind), end, queued.preemptible
    )


def leaves_user_headroom(board: PoolState, queued: QueuedWorkload, kind: int) -> bool:
    """The part of it that is about its owner's cap."""
    if (
        not board.ledger.reserved_user_headroom
        or queued.reservation is not None
        or queued.id in board.workloads_with_earmarks
    ):
        return True
    end = board.now + expected_seconds(queued)
    return board.ledger.leaves_user_headroom(queued.user, board.slots_needed(queued.ask, kind), end)


def may_use_spare(queued: QueuedWorkload) -> bool:
    """Only critical work, and work inside a reservation, may use what the pool keeps free."""
    return queued.priority is Priority.CRITICAL or queued.reservation is not None


def conflicting_own_reservation(
    board: PoolState, queued: QueuedWorkload, kind: int
) -> UpcomingReservation | None:
    """The first of its team's reservations to come that would be above the guarantee together with it, if it stayed until its
    limit and could not be told to go: others would then be short of what they are guaranteed, and nobody there to make room."""
    ledger, claim = board.ledger, (queued.team, board.kinds[kind].model)
    if (
        claim not in ledger.coming
        or queued.preemptible
        or queued.reservation is not None
        or queued.id in board.workloads_with_earmarks
    ):
        return None
    limit, firm = (
        board.now + queued.max_runtime_seconds,
        ledger.firm[claim] + board.slots_needed(queued.ask, kind),
    )
    return next(
        (row for row, most in _max_firm_slots_beside(board, claim) if row.start < limit and firm > most), None
    )


def _max_firm_slots_beside(board: PoolState, claim: TeamAndModel) -> list[tuple[UpcomingReservation, int]]:
    """Beside each of a team's reservations to come: how many slots it may hold now by what nobody can tell to go, where what is
    gone by then does not count. The same all cycle: worked out once, not for each that waits."""
    known = board.ledger.max_firm_beside_cache.get(claim)
    if known is None:
        rows, known = board.ledger.coming[claim], []
        for row in rows:
            at = max(row.start, board.now)
            promised = sum(other.slots for other in rows if other.start <= at < other.end)
            known.append(
                (
                    row,
                    board.ledger.guarantee_at(*claim, at)
                    - promised
                    + _firm_slots_released_by(board, claim, at),
                )
            )
        board.ledger.max_firm_beside_cache[claim] = known
    return known


def _firm_slots_released_by(board: PoolState, claim: TeamAndModel, at: int) -> int:
    """The slots that a team holds now, and not at a time to come, by what nobody can tell to go and by bound reservations."""
    team, model = claim
    table, mine = board.table, board.team_array(team)
    over = mine[
        (table[PREEMPTIBLE][mine] == 0) & (table[RESERVATION][mine] == 0) & (table[UNTIL][mine] <= at)
    ]
    gone = sum(
        int(board.run_slots[i]) for i in over.tolist() if board.model_of(board.units_of[i][0]) == model
    )
    for row in board.reservations:
        if row.team == team and row.end <= at:
            units = [board.unit_index[u] for u in row.units if u in board.unit_index]
            gone += sum(int(board.slots[u]) for u in units if board.model_of(u) == model)
    return gone
