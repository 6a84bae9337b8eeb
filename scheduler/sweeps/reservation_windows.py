"""Close reservations when they end, and give a notice to work in a reservation before its end."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from scheduler.coordination import locks
from scheduler.core.reasons import ReasonCode
from scheduler.models import Reservation, Workload
from scheduler.runs import commands
from scheduler.services.reservations import close_reservation
from scheduler.state import nudge
from scheduler.state.states import OPEN_RESERVATION_STATES, ReservationState, WorkloadState
from scheduler.sweeps.no_shows import reservation_no_shows
from scheduler.sweeps.unusable_units import rebind_unusable_units


def sweep_reservations(now: datetime) -> None:
    """Close reservations at their end or no-show limit, and do the other work that depends on their windows.

    The work in a reservation gets its notice early enough to end before the reservation ends. If a bound unit
    cannot be used and no work runs in the reservation, all its units are released, so that the next cycle
    binds other units. If a reservation has started, the engine is nudged.
    """
    _close_reservations_due(now)
    _warn_before_reservations_end(now)
    rebind_unusable_units(now)
    _nudge_at_starts(now)


def _close_reservations_due(now: datetime) -> None:
    ended = Reservation.objects.filter(state__in=OPEN_RESERVATION_STATES, end__lte=now).values_list(
        "pk", "pool_id"
    )
    for pk, pool in list(ended):
        with transaction.atomic():
            locks.pools([pool])
            fresh = locks.reservations([pk])[pk]
            if fresh.end <= now and fresh.state in OPEN_RESERVATION_STATES:
                close_reservation(fresh, ReservationState.OVER, now)
    for pk, pool in list(reservation_no_shows(now).values_list("pk", "pool_id")):
        with transaction.atomic():
            locks.pools([pool])
            fresh = locks.reservations([pk])[pk]
            if reservation_no_shows(now).filter(pk=pk).exists():
                close_reservation(fresh, ReservationState.RELEASED, now)


def _warn_before_reservations_end(now: datetime) -> None:
    inside = Workload.objects.filter(
        state=WorkloadState.RUNNING, reservation__state=ReservationState.ACTIVE, reservation__end__gt=now
    )
    for workload in inside.select_related("reservation", "pool"):
        end = workload.reservation.end if workload.reservation else now
        pool = workload.pool
        if end - timedelta(seconds=pool.notice_seconds + pool.grace_seconds) > now:
            continue
        stop_at = max(now, end - timedelta(seconds=pool.grace_seconds))
        with transaction.atomic():
            fresh = locks.workloads([workload.pk])[workload.pk]
            commands.give_notice(
                fresh,
                code=ReasonCode.RESERVATION_OVER,
                stop_at=stop_at,
                grace_seconds=pool.grace_seconds,
                now=now,
            )


def _nudge_at_starts(now: datetime) -> None:
    """Nudge the engine if a reservation has started. The next cycle binds units to the reservation."""
    if Reservation.objects.filter(state=ReservationState.CONFIRMED, start__lte=now).exists():
        with transaction.atomic():
            nudge.engine()
