"""Find events of reservations, for notices to their owners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import Count, Exists, OuterRef, Q

from portal.notices.pending import PendingNotice
from portal.notices.recipients import operator_ids
from scheduler.core.reasons import ReasonCode
from scheduler.models import Allocation, BoundUnit, Reservation, Workload
from scheduler.runs.commands import LIVE_STATES
from scheduler.state.states import OPEN_RESERVATION_STATES, ReservationState
from scheduler.sweeps import unusable_units

RESERVATION_REMINDER_BEFORE = timedelta(minutes=15)


def upcoming_reservations(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a reminder about each confirmed reservation that begins soon."""
    for reservation in Reservation.objects.filter(
        state=ReservationState.CONFIRMED, start__gt=now, start__lte=now + RESERVATION_REMINDER_BEFORE
    ):
        start = reservation.start.timestamp()
        numbers = {"name": reservation.name, "start": start}
        source = f"soon:{reservation.pk}:{start:.0f}"
        yield PendingNotice(
            "reservation_soon", source, (reservation.owner_id,), numbers, reservation=reservation.pk
        )


def ending_reservations(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a reminder about each active reservation that ends soon, with the number of its workloads."""
    ending = Reservation.objects.filter(
        state=ReservationState.ACTIVE, end__gt=now, end__lte=now + RESERVATION_REMINDER_BEFORE
    )
    inside = Count("workloads", filter=Q(workloads__state__in=LIVE_STATES))
    for reservation in ending.annotate(live=inside).order_by("pk"):
        end = reservation.end.timestamp()
        numbers = {"name": reservation.name, "end": end, "workloads": reservation.live}
        source = f"ends:{reservation.pk}:{end:.0f}"
        yield PendingNotice(
            "reservation_ends", source, (reservation.owner_id,), numbers, reservation=reservation.pk
        )


def released_reservations(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each reservation that was released because no work ran in it."""
    for reservation in Reservation.objects.filter(
        state=ReservationState.RELEASED, ended_at__gt=since, ended_at__lte=now
    ):
        numbers = {"name": reservation.name}
        owner = (reservation.owner_id,)
        yield PendingNotice(
            "reservation_released", f"released:{reservation.pk}", owner, numbers, reservation=reservation.pk
        )


def reservations_without_units(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each reservation that has started but gets no GPUs.

    The owner of the reservation and the operators receive the notice.
    """
    waiting = Reservation.objects.filter(
        reason_code=ReasonCode.RESERVED_UNITS_MISSING,
        reason_at__gt=since,
        reason_at__lte=now,
        state__in=OPEN_RESERVATION_STATES,
    )
    for row in waiting:
        numbers = {**row.reason_numbers, "name": row.name, "code": row.reason_code}
        source = f"waits:{row.pk}:{row.reason_at:%Y%m%d%H%M%S}"
        yield PendingNotice(
            "reservation_waits", source, (row.owner_id, *operator_ids()), numbers, reservation=row.pk
        )


def reservations_at_risk(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each open reservation for which the pool has no usable units.

    The owner of the reservation and the operators receive the notice.
    """
    rows = Reservation.objects.filter(
        at_risk_since__gt=since, at_risk_since__lte=now, state__in=OPEN_RESERVATION_STATES
    )
    for row in rows.select_related("owner", "project__team"):
        numbers = {
            **row.at_risk_numbers,
            "name": row.name,
            "owner": row.owner.get_username(),
            "team": row.project.team.name,
        }
        source = f"at risk:{row.pk}:{row.at_risk_since:%Y%m%d%H%M%S}"
        yield PendingNotice(
            "reservation_at_risk", source, (row.owner_id, *operator_ids()), numbers, reservation=row.pk
        )


def rebound_reservations(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each reservation that gets other GPUs because its GPUs became unusable."""
    for row in Reservation.objects.filter(moved_at__gt=since, moved_at__lte=now):
        moved = row.moved_at.timestamp() if row.moved_at else 0
        numbers = {"name": row.name, "host": row.moved_from}
        yield PendingNotice(
            "reservation_moves", f"moved:{row.pk}:{moved:.0f}", (row.owner_id,), numbers, reservation=row.pk
        )


def reservations_with_unusable_units(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each reservation that keeps unusable GPUs because work runs in it.

    There is only one notice about the same GPUs of a reservation.
    """
    inside = Allocation.objects.filter(reservation=OuterRef("reservation"), period__upper_inf=True)
    found: dict[int, list[BoundUnit]] = defaultdict(list)
    rows = (
        unusable_units.unusable_bound_units(now)
        .filter(Exists(inside))
        .select_related("reservation", "unit__gpu__host")
    )
    for bound in rows.order_by("reservation_id", "pk"):
        found[bound.reservation_id].append(bound)
    for pk, units in found.items():
        reservation = units[0].reservation
        hosts = sorted({bound.unit.gpu.host.name for bound in units})
        numbers = {
            "name": reservation.name,
            "host": ", ".join(hosts),
            "units": len(units),
            "of": reservation.units * reservation.hosts,
            "workloads": Workload.objects.filter(reservation=pk, state__in=LIVE_STATES).count(),
        }
        source = f"stuck:{pk}:{units[0].pk}:{len(units)}"
        yield PendingNotice("reservation_stuck", source, (reservation.owner_id,), numbers, reservation=pk)
