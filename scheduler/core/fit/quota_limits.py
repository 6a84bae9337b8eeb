"""Check the limits on the slots that a workload may hold. The limits do not depend on the free units.

The limits are quota, caps, the headroom reserved for work ahead in the queue, and spare capacity.
"""

from __future__ import annotations

from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.quota_ledger import UNLIMITED_SLOTS, Headroom, TeamAndModel, UpcomingReservation
from scheduler.core.model.running_work import PREEMPTIBLE, RESERVATION, UNTIL
from scheduler.core.model.snapshot import Priority, QueuedWorkload
from scheduler.core.model.waiting_queue import expected_seconds


def headroom_for(state: PoolState, queued: QueuedWorkload, kind: int) -> Headroom:
    """Return the headroom of a workload's team for one kind. Inside a reservation only the reservation is a
    limit.
    """
    if queued.reservation is not None:
        return Headroom(True, 0, 0, 0, UNLIMITED_SLOTS, 0, False)
    need, model = state.slots_needed(queued.ask, kind), state.kinds[kind].model
    return state.ledger.headroom(queued.team, model, need, queued.preemptible, queued.may_borrow)


def within_caps(state: PoolState, queued: QueuedWorkload, kind: int) -> bool:
    """Return True if the workload is within the caps on one user and on one workload."""
    if not within_workload_cap(state, queued, kind):
        return False
    if state.policy.max_slots_per_user is None:
        return True
    return state.slots_needed(queued.ask, kind) <= state.ledger.user_cap_left(queued.user)


def within_workload_cap(state: PoolState, queued: QueuedWorkload, kind: int) -> bool:
    """Return True if the workload is within the cap on one workload."""
    cap = state.policy.max_slots_per_workload
    return cap is None or state.slots_needed(queued.ask, kind) <= cap


def kinds_within_limits(state: PoolState, queued: QueuedWorkload) -> list[int]:
    """Return the kinds that quota and caps allow, in the ask's order.

    The result is cached for equal asks until the team gets slots.
    """
    ask = state.resolve_ask(queued.ask)
    is_cacheable = queued.reservation is None and state.policy.max_slots_per_user is None
    cached, key = (
        state.ledger.kinds_within_limits_cache[queued.team],
        (ask.number, queued.preemptible, queued.may_borrow),
    )
    kinds = cached.get(key) if is_cacheable else None
    if kinds is None:
        kinds = [
            k for k in ask.kinds if headroom_for(state, queued, k).allowed and within_caps(state, queued, k)
        ]
        if is_cacheable:
            cached[key] = kinds
    return kinds


def leaves_headroom(state: PoolState, queued: QueuedWorkload, kind: int) -> bool:
    """Return True if the workload does not use the headroom reserved for its team's or user's work ahead in
    the queue.
    """
    ledger, model = state.ledger, state.kinds[kind].model
    if ledger.reserved_user_headroom and not leaves_user_headroom(state, queued, kind):
        return False
    if (
        not queued.preemptible
        and ledger.upcoming_reservations
        and conflicting_own_reservation(state, queued, kind) is not None
    ):
        return False
    if (queued.team, model) not in ledger.reserved_headroom:
        return True
    if queued.reservation is not None or queued.id in state.workloads_with_earmarks:
        return True
    end = state.now + expected_seconds(queued)
    return ledger.leaves_headroom(
        queued.team, model, state.slots_needed(queued.ask, kind), end, queued.preemptible
    )


def leaves_user_headroom(state: PoolState, queued: QueuedWorkload, kind: int) -> bool:
    """Return True if the workload does not use the headroom reserved within its user's cap."""
    if (
        not state.ledger.reserved_user_headroom
        or queued.reservation is not None
        or queued.id in state.workloads_with_earmarks
    ):
        return True
    end = state.now + expected_seconds(queued)
    return state.ledger.leaves_user_headroom(queued.user, state.slots_needed(queued.ask, kind), end)


def may_use_spare(queued: QueuedWorkload) -> bool:
    """Return True if the workload may use the pool's spare capacity: it is critical or runs inside a
    reservation.
    """
    return queued.priority is Priority.CRITICAL or queued.reservation is not None


def conflicting_own_reservation(
    state: PoolState, queued: QueuedWorkload, kind: int
) -> UpcomingReservation | None:
    """Return the first upcoming reservation that would exceed the team's guarantee together with the
    workload, or None.

    This matters for non-preemptible work that would still run at the reservation's start. Such work could not
    be evicted, so other teams could not reclaim their guarantee.
    """
    ledger, team_model = state.ledger, (queued.team, state.kinds[kind].model)
    if (
        team_model not in ledger.upcoming_reservations
        or queued.preemptible
        or queued.reservation is not None
        or queued.id in state.workloads_with_earmarks
    ):
        return None
    limit, firm = (
        state.now + queued.max_runtime_seconds,
        ledger.non_preemptible[team_model] + state.slots_needed(queued.ask, kind),
    )
    return next(
        (
            row
            for row, max_slots in _max_firm_slots_beside(state, team_model)
            if row.start < limit and firm > max_slots
        ),
        None,
    )


def _max_firm_slots_beside(
    state: PoolState, team_model: TeamAndModel
) -> list[tuple[UpcomingReservation, int]]:
    """Return, for each upcoming reservation of a team, the most slots that the team's non-preemptible work
    may hold now.

    Slots of work that ends before the reservation are allowed in addition. The result is cached for the
    cycle.
    """
    cached = state.ledger.max_firm_beside_cache.get(team_model)
    if cached is None:
        rows, cached = state.ledger.upcoming_reservations[team_model], []
        for row in rows:
            time = max(row.start, state.now)
            promised = sum(other_row.slots for other_row in rows if other_row.start <= time < other_row.end)
            cached.append(
                (
                    row,
                    state.ledger.guaranteed_slots_at(*team_model, time)
                    - promised
                    + _firm_slots_released_by(state, team_model, time),
                )
            )
        state.ledger.max_firm_beside_cache[team_model] = cached
    return cached


def _firm_slots_released_by(state: PoolState, team_model: TeamAndModel, time: int) -> int:
    """Return the slots that non-preemptible work and bound reservations of the team release until
    ``time``.
    """
    team, model = team_model
    table, team_work = state.table, state.team_array(team)
    ended = team_work[
        (table[PREEMPTIBLE][team_work] == 0)
        & (table[RESERVATION][team_work] == 0)
        & (table[UNTIL][team_work] <= time)
    ]
    released = sum(
        int(state.run_slots[i]) for i in ended.tolist() if state.model_of(state.units_of[i][0]) == model
    )
    for row in state.reservations:
        if row.team == team and row.end <= time:
            units = [state.unit_index[u] for u in row.units if u in state.unit_index]
            released += sum(int(state.slots[u]) for u in units if state.model_of(u) == model)
    return released
