"""Release the units that are bound to reservations."""

from __future__ import annotations

from datetime import datetime

from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from scheduler.models import BoundUnit, Reservation
from scheduler.state.states import OPEN_RESERVATION_STATES


def release_units(reservation: Reservation, now: datetime) -> None:
    """End the bindings of the reservation's units at ``now``. Bindings that start later are deleted."""
    for bound in BoundUnit.objects.filter(reservation=reservation, period__endswith__gt=now):
        _end_binding(bound, now)


def _end_binding(bound: BoundUnit, now: datetime) -> None:
    if bound.period.lower >= now:
        bound.delete()
    else:
        BoundUnit.objects.filter(pk=bound.pk).update(period=DateTimeTZRange(bound.period.lower, now))


def release_expired_bindings(now: datetime) -> None:
    """If a binding of a closed reservation would end after ``now``, end it now.

    Such a binding exists if the clock was ahead when the reservation was closed, and was set back later.
    Without this function, the units would stay bound until the clock reaches the recorded end of the binding.
    """
    for bound in BoundUnit.objects.filter(period__endswith__gt=now).exclude(
        reservation__state__in=OPEN_RESERVATION_STATES
    ):
        _end_binding(bound, now)
