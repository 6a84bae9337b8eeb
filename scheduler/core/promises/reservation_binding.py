"""Bind reservations, that is, give them their units at their start. Evict preemptible work from these units.

If a reservation has begun but cannot be bound, the plan gets a row with the reason.
"""

from __future__ import annotations

import numpy as np

from scheduler.core.fit.cheapest_units import cheapest_units
from scheduler.core.model.plan import Eviction, UnboundReservation
from scheduler.core.model.pool_state import PoolState, eviction_lead_seconds
from scheduler.core.model.quota_ledger import UpcomingReservation
from scheduler.core.model.running_work import NO_HOLDER
from scheduler.core.model.snapshot import PoolKind, ReservationInfo
from scheduler.core.promises.guaranteed_work import preemptible_holders
from scheduler.core.promises.promise_timeline import PromiseTimeline
from scheduler.core.reasons import ReasonCode, reason_numbers


def bind_reservations(state: PoolState) -> PromiseTimeline:
    """Bind the reservations that start now, evict work for reservations that start soon, and plan the rest.

    For later reservations, record the units that they are expected to get. Return the promises on all units.
    """
    promises = PromiseTimeline(state)
    for reservation in sorted(state.reservations, key=lambda r: (r.start, r.id)):
        units = promises.tentative_units.get(reservation.id)
        if units is None:
            if reservation.start <= state.now and not reservation.units:
                state.unbound.append(units_missing(state, promises, reservation))
            continue
        if reservation.units:
            # The hosts of the reservation's present units have maintenance before its end. When the
            # maintenance begins, ``units`` replace the present units.
            state.note_reservation_units(promises.to_be_bound[reservation.id], units)
            continue
        if reservation.start <= state.now and all(
            state.holder[u] == NO_HOLDER and state.earmarked_for[u] == 0 for u in units
        ):
            state.bind_reservation(reservation, units)
            continue
        if reservation.start - eviction_lead_seconds(state) <= state.now:
            units = promises.tentative_units[reservation.id] = choose_units_with_fewer_evictions(
                state, promises, reservation, units
            )
            evict_holders(state, reservation, units)
        state.note_reservation_units(reservation, units)
        note_upcoming_reservation(state, reservation, units)
        if reservation.start <= state.now:
            state.unbound.append(units_in_use(state, reservation, units))
    return promises


def note_upcoming_reservation(state: PoolState, reservation: ReservationInfo, units: list[int]) -> None:
    """Record the slots of the team's guarantee that a reservation without units will need.

    The team's non-preemptible work that would still run at the reservation's start must leave these slots
    free. Reservations that may exceed the guarantee, and all reservations of a static pool, are not recorded.
    """
    if reservation.may_exceed_guarantee or state.pool.kind is PoolKind.STATIC:
        return
    slots_by_model: dict[str, int] = {}
    for unit in units:
        slots_by_model[state.model_of(unit)] = slots_by_model.get(state.model_of(unit), 0) + int(
            state.slots[unit]
        )
    for model, slots in slots_by_model.items():
        upcoming = UpcomingReservation(reservation.start, reservation.end, slots, reservation.id)
        state.ledger.upcoming_reservations.setdefault((reservation.team, model), []).append(upcoming)


def units_missing(
    state: PoolState, promises: PromiseTimeline, reservation: ReservationInfo
) -> UnboundReservation:
    """Return the plan's row for a reservation that has begun and for which there are not enough units.

    Units may have failed, be closed, be promised to others, or be held by work that must not be evicted.
    """
    fitting = state.units_serving(reservation.ask)
    free = promises.open_units(state.now, reservation.end) & fitting
    numbers = reason_numbers(
        closed=int((fitting & ~state.in_service).sum()),
        free=int(free.sum()),
        hosts=reservation.ask.hosts,
        need=reservation.ask.total_units,
        total=int(fitting.sum()),
    )
    return UnboundReservation(reservation.id, ReasonCode.RESERVED_UNITS_MISSING, numbers)


def units_in_use(state: PoolState, reservation: ReservationInfo, units: list[int]) -> UnboundReservation:
    """Return the plan's row for a reservation that has begun and whose units are still in use.

    A unit is in use if work holds it, or if it is earmarked for a waiting workload. The work is stopping, or
    must not be evicted yet.
    """
    held = [u for u in units if state.holder[u] != NO_HOLDER or state.earmarked_for[u] != 0]
    numbers = reason_numbers(
        need=len(units),
        units=len(held),
        workloads=len({int(state.holder[u]) for u in held} - {NO_HOLDER}),
        hosts=reservation.ask.hosts,
    )
    return UnboundReservation(reservation.id, ReasonCode.RESERVED_UNITS_IN_USE, numbers)


def choose_units_with_fewer_evictions(
    state: PoolState, promises: PromiseTimeline, reservation: ReservationInfo, units: list[int]
) -> list[int]:
    """Return units for a reservation that need no more evictions than ``units``, and fewer if possible.

    A victim may hold more units than the reservation needs. Example: two victims hold 2 units each and the
    reservation takes one unit of each. Then two units of one victim suffice. The function goes through the
    victims, the most expensive first. For each victim, it tries to find units without evicting this victim.
    """
    victims = preemptible_holders(state, reservation, units)
    for victim in sorted(victims, key=lambda v: (-int(state.cost[v]), v)):
        other_victims = [v for v in victims if v != victim]
        staying = {int(state.holder[u]) for u in units} - set(victims)
        mask = promises.open_units(
            max(reservation.start, state.now + eviction_lead_seconds(state)), reservation.end
        )
        mask &= np.isin(state.holder, [NO_HOLDER, *other_victims]) & (state.earmarked_for == 0)
        mask[units] = [int(state.holder[u]) in staying | {*other_victims, NO_HOLDER} for u in units]
        kind = int(state.kind[units[0]])
        alternative = cheapest_units(
            state, reservation.ask, kind, mask, np.zeros(len(state.units), dtype=np.int64)
        )
        if alternative is not None:
            units, victims = alternative, other_victims
    return units


def evict_holders(state: PoolState, reservation: ReservationInfo, units: list[int]) -> None:
    """Evict the preemptible work that would still hold a reservation's units at its start."""
    for victim in preemptible_holders(state, reservation, units):
        running = state.running[victim]
        state.evict_workload(
            victim,
            Eviction(
                running.id,
                None,
                reservation.id,
                ReasonCode.EVICTED_FOR_RESERVATION,
                state.now + state.policy.notice_seconds,
                reason_numbers(reservation=reservation.id, start=reservation.start, units=len(units)),
            ),
        )
