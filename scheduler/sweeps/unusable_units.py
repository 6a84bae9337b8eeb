"""Find bound units that cannot be used, and release their reservations' units so that others are bound."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Q, QuerySet

from scheduler.models import BoundUnit, Reservation
from scheduler.services.reservations import rebind_reservation
from scheduler.state.states import AdminState, LeaseState, RepairState, ReservationState


def unusable_bound_units(now: datetime) -> QuerySet[BoundUnit]:
    """Units that are bound to a reservation and that nobody can use at present: taken out, retired, or on a host that is closed or
    silent."""
    usable = Q(
        unit__gpu__repair_state=RepairState.WELL,
        unit__gpu__host__repair_state=RepairState.WELL,
        unit__gpu__host__admin_state=AdminState.IN_SERVICE,
        unit__gpu__host__lease_state__in=(LeaseState.ALIVE, LeaseState.SUSPECT),
        unit__retired_at__isnull=True,
    )
    bound = BoundUnit.objects.filter(reservation__state=ReservationState.ACTIVE, period__contains=now)
    return bound.exclude(usable)


def rebind_unusable_units(now: datetime) -> None:
    """A reservation bound to units that nobody can use gets others, once nothing runs inside it; until then its owner knows by a
    notice."""
    ids = unusable_bound_units(now).values_list("reservation_id", flat=True).distinct()
    for reservation in Reservation.objects.filter(pk__in=list(ids)).order_by("pk"):
        unusable = unusable_bound_units(now).filter(reservation=reservation)
        hosts = sorted(set(unusable.values_list("unit__gpu__host__name", flat=True)))
        with transaction.atomic():
            if rebind_reservation(reservation, now=now):
                left = {"moved_at": now, "moved_from": ", ".join(hosts)[:200]}
                Reservation.objects.filter(pk=reservation.pk).update(**left)
