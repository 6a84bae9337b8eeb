"""Check the limits on the slots that a workload may hold. These limits do not depend on the free units.

A slot is a fraction of a GPU. The limits are:

- the quota of the team: its guarantee (slots that it can always have) and how much more it may borrow;
- the caps on one user and on one workload;
- reserved headroom: slots below a limit that are reserved for work ahead in the queue;
- spare capacity: slots that the pool keeps free for critical work.

The class ``Headroom`` is not reserved headroom. It is the answer to the question whether the team's quota
allows more slots.
"""

from __future__ import annotations

from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.quota_ledger import UNLIMITED_SLOTS, Headroom, TeamAndModel, UpcomingReservation
from scheduler.core.model.running_work import PREEMPTIBLE, RESERVATION, UNTIL
from scheduler.core.model.snapshot import Priority, QueuedWorkload
from scheduler.core.model.waiting_queue import expected_seconds


def headroom_for(state: PoolState, queued: QueuedWorkload, kind: int) -> Headroom:
    """Return a ``Headroom`` object: whether the team's quota lets the workload start on units of this kind.

    The object also has the numbers behind this answer.

    Work inside a reservation is always allowed, because its reservation was checked against the quota.
    """
    if queued.reservation is not None:
        return Headroom(True, 0, 0, 0, UNLIMITED_SLOTS, 0, False)
    need, model = state.slots_needed(queued.ask, kind), state.kinds[kind].model
    return state.ledger.headroom(queued.team, model, need, queued.preemptible, queued.may_borrow)


def within_caps(state: PoolState, queued: QueuedWorkload, kind: int) -> bool:
    """Return True if the workload stays within the cap on one user and the cap on one workload."""
    if not within_workload_cap(state, queued, kind):
        return False
    if state.policy.max_slots_per_user is None:
        return True
    return state.slots_needed(queued.ask, kind) <= state.ledger.user_cap_left(queued.user)


def within_workload_cap(state: PoolState, queued: QueuedWorkload, kind: int) -> bool:
    """Return True if the workload does not exceed the cap on one workload."""
    cap = state.policy.max_slots_per_workload
    return cap is None or state.slots_needed(queued.ask, kind) <= cap


def kinds_within_limits(state: PoolState, queued: QueuedWorkload) -> list[int]:
    """Return the kinds of units that quota and caps allow for the workload, in the ask's order of preference.

    The result is cached for equal requests of a team until the team gets slots. It is not cached for work
    inside a reservation, or if the pool has a cap on one user.
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
    """Return True if the workload leaves enough reserved headroom when it starts on a kind.

    The headroom is reserved for work of the same team or user that is ahead in the queue. Non-preemptible
    work must also leave the part of the guarantee that the team's upcoming reservations will need. Work
    inside a reservation and work with earmarked units (units that were freed for it) are always allowed.
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
    """Return True if the workload may start without using headroom reserved below its user's cap."""
    if (
        not state.ledger.reserved_user_headroom
        or queued.reservation is not None
        or queued.id in state.workloads_with_earmarks
    ):
        return True
    end = state.now + expected_seconds(queued)
    return state.ledger.leaves_user_headroom(queued.user, state.slots_needed(queued.ask, kind), end)


def may_use_spare(queued: QueuedWorkload) -> bool:
    """Return True if the workload may use the pool's spare capacity.

    It may if its priority is CRITICAL or it runs inside a reservation.
    """
    return queued.priority is Priority.CRITICAL or queued.reservation is not None


def conflicting_own_reservation(
    state: PoolState, queued: QueuedWorkload, kind: int
) -> UpcomingReservation | None:
    """Return the team's first upcoming reservation that leaves too little of the guarantee for the workload.

    Only non-preemptible work that would still run at the reservation's start is checked, because it cannot be
    evicted. If this work and the reservation together exceeded the guarantee, other teams could not get their
    own guaranteed units back. Return None if no reservation conflicts.

    Example: a team with a guarantee of 8 GPUs has a reservation of 6 GPUs in 2 hours. A notebook with 4 GPUs
    and a limit of 8 hours conflicts with it.
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
            for row, max_slots in _max_firm_slots_with_others(state, team_model)
            if row.start < limit and firm > max_slots
        ),
        None,
    )


def _max_firm_slots_with_others(
    state: PoolState, team_model: TeamAndModel
) -> list[tuple[UpcomingReservation, int]]:
    """Return (reservation, slots) for each upcoming reservation of a team.

    The slots are the most that the team's non-preemptible work and bound reservations may hold now. To
    compute them, take the team's guarantee at the start of the reservation. Subtract the slots of all
    upcoming reservations of the team that are in progress at this start, including this reservation. Add the
    slots that the team will release by this start. The result is cached for the cycle (one run of the
    planner).
    """
    cached = state.ledger.max_firm_with_others_cache.get(team_model)
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
        state.ledger.max_firm_with_others_cache[team_model] = cached
    return cached


def _firm_slots_released_by(state: PoolState, team_model: TeamAndModel, time: int) -> int:
    """Return the slots that the team's non-preemptible work and bound reservations will release by ``time``.

    A bound reservation is a reservation that has its units.
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
