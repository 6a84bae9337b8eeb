"""Release the units of reservations with an unusable unit, so that the next cycle binds other units."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import DurationField, Exists, ExpressionWrapper, F, OuterRef, Q, QuerySet, Value

from scheduler.models import BoundUnit, MaintenanceWindow, Reservation
from scheduler.services.reservations import rebind_reservation
from scheduler.state.states import AdminState, LeaseState, RepairState, ReservationState

ONE_SECOND = timedelta(seconds=1)


def unusable_bound_units(now: datetime) -> QuerySet[BoundUnit]:
    """Return bindings of active reservations to units that cannot be used now.

    A unit cannot be used if it is retired, if its GPU is not well, or if its host is closed or silent.
    """
    usable = Q(
        unit__gpu__repair_state=RepairState.WELL,
        unit__gpu__host__repair_state=RepairState.WELL,
        unit__gpu__host__admin_state=AdminState.IN_SERVICE,
        unit__gpu__host__lease_state__in=(LeaseState.ALIVE, LeaseState.SUSPECT),
        unit__retired_at__isnull=True,
    )
    bound = BoundUnit.objects.filter(reservation__state=ReservationState.ACTIVE, period__contains=now)
    return bound.exclude(usable)


def bound_units_before_maintenance(now: datetime) -> QuerySet[BoundUnit]:
    """Return bindings of active reservations to units on hosts that are drained for maintenance now.

    Only maintenance that begins before the reservation's end counts.
    """
    lead = ExpressionWrapper(
        (F("host__pool__notice_seconds") + F("host__pool__grace_seconds")) * Value(ONE_SECOND),
        output_field=DurationField(),
    )
    drained = MaintenanceWindow.objects.annotate(lead=lead).filter(
        host=OuterRef("unit__gpu__host"),
        end__gt=now,
        start__lte=now + F("lead"),
        start__lt=OuterRef("reservation__end"),
    )
    bound = BoundUnit.objects.filter(reservation__state=ReservationState.ACTIVE, period__contains=now)
    return bound.filter(Exists(drained))


def rebind_unusable_units(now: datetime) -> None:
    """Release all units of each reservation with an unusable unit, once no work runs in the reservation.

    The next cycle binds other units. Units on a host that is drained for maintenance count as unusable, so
    that other units are bound before the maintenance begins. While work runs in the reservation, nothing is
    released, and the owner sees a notice.
    """
    leaving = unusable_bound_units(now).values("pk").union(bound_units_before_maintenance(now).values("pk"))
    units = BoundUnit.objects.filter(pk__in=[row["pk"] for row in leaving])
    ids = units.values_list("reservation_id", flat=True).distinct()
    for reservation in Reservation.objects.filter(pk__in=list(ids)).order_by("pk"):
        unusable = units.filter(reservation=reservation)
        hosts = sorted(set(unusable.values_list("unit__gpu__host__name", flat=True)))
        with transaction.atomic():
            if rebind_reservation(reservation, now=now):
                Reservation.objects.filter(pk=reservation.pk).update(
                    moved_at=now, moved_from=", ".join(hosts)[:200]
                )
