"""Find reservations for which there are not enough units, before they start."""

from __future__ import annotations

from scheduler.core.model.plan import UnboundReservation
from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import Snapshot
from scheduler.core.promises.promise_timeline import PromiseTimeline, maintained_units
from scheduler.core.reasons import ReasonCode, reason_numbers


def unserved_reservations(snapshot: Snapshot, pool: int, now: int) -> tuple[UnboundReservation, ...]:
    """Return the reservations of a pool that cannot be kept at present, sorted by id, with the reason.

    They are future reservations, and reservations that cannot be moved to other units when maintenance of
    their hosts begins. A reservation that has begun without units is not included, because the plan has a row
    for it. In the reason, ``closed`` is the number of suitable units that are closed, unhealthy, or in
    maintenance during the reservation.
    """
    found = []
    for row in snapshot.pools:
        if row.id != pool:
            continue
        state = PoolState(PoolSnapshot(snapshot, row), now)
        promises = PromiseTimeline(state)
        for reservation in promises.to_be_bound.values():
            has_begun = reservation.start <= now and not state.reservation_by_id[reservation.id].units
            if has_begun or reservation.id in promises.tentative_units:
                continue
            fitting = state.units_serving(reservation.ask)
            away = ~state.in_service | maintained_units(state, reservation.start, reservation.end)
            free = promises.open_units(reservation.start, reservation.end) & fitting
            numbers = reason_numbers(
                closed=int((fitting & away).sum()),
                free=int(free.sum()),
                hosts=reservation.ask.hosts,
                need=reservation.ask.total_units,
                start=reservation.start,
                total=int(fitting.sum()),
            )
            found.append(UnboundReservation(reservation.id, ReasonCode.RESERVATION_AT_RISK, numbers))
    return tuple(sorted(found, key=lambda unserved: unserved.reservation))
