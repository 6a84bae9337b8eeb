"""Find active reservations that no workload has used within the no-show limit of their pool."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import DurationField, ExpressionWrapper, F, Max, Q, QuerySet, Value

from scheduler.coordination import clock_correction
from scheduler.models import Reservation
from scheduler.state.states import ReservationState

ONE_SECOND = timedelta(seconds=1)


def reservation_no_shows(now: datetime) -> QuerySet[Reservation]:
    """Return active reservations that no workload has used within the no-show limit of their pool.

    The limit counts from the time at which the current units were bound, because a reservation without units
    cannot be used. After a clock step the limit counts from the step, because the times of bindings are not
    corrected.
    """
    limit = ExpressionWrapper(F("pool__no_show_seconds") * Value(ONE_SECOND), output_field=DurationField())
    bound_now = Q(bound_units__period__contains=now)
    unused = Reservation.objects.filter(
        state=ReservationState.ACTIVE, first_used_at__isnull=True, end__gt=now
    )
    bound = unused.annotate(limit=limit, since=Max(F("bound_units__period__startswith"), filter=bound_now))
    if (steady_since := clock_correction.last_clock_step_at()) is not None:
        bound = bound.filter(limit__lte=now - steady_since)
    return bound.filter(start__lte=now - F("limit"), since__lte=now - F("limit")).order_by("pk")
