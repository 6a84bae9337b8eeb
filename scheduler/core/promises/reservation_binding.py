"""Reservations kept: units are bound at the start, and who borrows them is told to go in time. One that has begun and can't be
bound says why."""

from __future__ import annotations

import numpy as np

from scheduler.core.fit.cheapest_units import cheapest_units
from scheduler.core.model.plan import Eviction, UnboundReservation
from scheduler.core.model.pool_state import PoolState, eviction_lead_seconds
from scheduler.core.model.quota_ledger import UpcomingReservation
from scheduler.core.model.running_work import NO_HOLDER
from scheduler.core.model.snapshot import PoolKind, ReservationInfo
from scheduler.core.promises.promise_timeline import PromiseTimeline
from scheduler.core.reasons import ReasonCode, reason_numbers


def bind_reservations(board: PoolState) -> PromiseTimeline:
    """Bind what starts, warn who is in the way, and note on which units those still to come count."""
    promises = PromiseTimeline(board)
    for reservation in sorted(board.reservations, key=lambda r: (r.start, r.id)):
        units = promises.tentative_units.get(reservation.id)
        if units is None:
            if reservation.start <= board.now and not reservation.units:
                board.unbound.append(units_missing(board, promises, reservation))
            continue
        if reservation.start <= board.now and all(
            board.holder[u] == NO_HOLDER and board.kept[u] == 0 for u in units
        ):
            board.bind(reservation, units)
            continue
        if reservation.start - eviction_lead_seconds(board) <= board.now:
            units = promises.tentative_units[reservation.id] = choose_units_with_fewer_evictions(
                board, promises, reservation, units
            )
            evict_holders(board, reservation, units)
        board.promise(reservation, units)
        note_upcoming_reservation(board, reservation, units)
        if reservation.start <= board.now:
            board.unbound.append(units_in_use(board, reservation, units))
    return promises


def note_upcoming_reservation(board: PoolState, reservation: ReservationInfo, units: list[int]) -> None:
    """Once it has its units they count against its team's guarantee, so what would still be there then has to leave room. Not
    where an operator let it exceed that."""
    if reservation.may_exceed_guarantee or board.pool.kind is PoolKind.STATIC:
        return
    taken: dict[str, int] = {}
    for unit in units:
        taken[board.model_of(unit)] = taken.get(board.model_of(unit), 0) + int(board.slots[unit])
    for model, slots in taken.items():
        row = UpcomingReservation(reservation.start, reservation.end, slots, reservation.id)
        board.ledger.coming.setdefault((reservation.team, model), []).append(row)


def units_missing(
    board: PoolState, promises: PromiseTimeline, reservation: ReservationInfo
) -> UnboundReservation:
    """No choice of units would do until its end: some failed or were closed, or are held by work that must stay."""
    fitting = board.fitting(reservation.ask)
    free = promises.open_units(board.now, reservation.end) & fitting
    why = reason_numbers(
        closed=int((fitting & ~board.in_service).sum()),
        free=int(free.sum()),
        hosts=reservation.ask.hosts,
        need=reservation.ask.total_units,
        total=int(fitting.sum()),
    )
    return UnboundReservation(reservation.id, ReasonCode.RESERVED_UNITS_MISSING, why)


def units_in_use(board: PoolState, reservation: ReservationInfo, units: list[int]) -> UnboundReservation:
    """Its units are known, and somebody is on them: on the way out, or too young to be told so."""
    held = [u for u in units if board.holder[u] != NO_HOLDER or board.kept[u] != 0]
    why = reason_numbers(
        need=len(units),
        units=len(held),
        workloads=len({int(board.holder[u]) for u in held} - {NO_HOLDER}),
        hosts=reservation.ask.hosts,
    )
    return UnboundReservation(reservation.id, ReasonCode.RESERVED_UNITS_IN_USE, why)


def preemptible_holders(board: PoolState, reservation: ReservationInfo, units: list[int]) -> list[int]:
    """The preemptible work that would still be on a reservation's units when it starts, and may be told to go."""
    found = []
    for victim in sorted({int(board.holder[u]) for u in units} - {NO_HOLDER}):
        if board.evictable[victim] and board.running[victim].until > reservation.start:
            found.append(victim)
    return found


def choose_units_with_fewer_evictions(
    board: PoolState, promises: PromiseTimeline, reservation: ReservationInfo, units: list[int]
) -> list[int]:
    """Other units for a reservation, for which not all that are in its way need to go: what one leaves whole may be
    more than the reservation takes of it. Tried for the dearest first."""
    going = preemptible_holders(board, reservation, units)
    for victim in sorted(going, key=lambda v: (-int(board.cost[v]), v)):
        rest = [v for v in going if v != victim]
        stays = {int(board.holder[u]) for u in units} - set(going)
        mask = promises.open_units(
            max(reservation.start, board.now + eviction_lead_seconds(board)), reservation.end
        )
        mask &= np.isin(board.holder, [NO_HOLDER, *rest]) & (board.kept == 0)
        mask[units] = [int(board.holder[u]) in stays | {*rest, NO_HOLDER} for u in units]
        kind = int(board.kind[units[0]])
        found = cheapest_units(board, reservation.ask, kind, mask, np.zeros(len(board.units), dtype=np.int64))
        if found is not None:
            units, going = found, rest
    return units


def evict_holders(board: PoolState, reservation: ReservationInfo, units: list[int]) -> None:
    """Evict the preemptible work that would still be on a reservation's units when it starts."""
    for victim in preemptible_holders(board, reservation, units):
        running = board.running[victim]
        board.evict(
            victim,
            Eviction(
                running.id,
                None,
                reservation.id,
                ReasonCode.EVICTED_FOR_RESERVATION,
                board.now + board.policy.notice_seconds,
                reason_numbers(reservation=reservation.id, start=reservation.start, units=len(units)),
            ),
        )
