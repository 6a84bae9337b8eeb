"""Describe reservations as events of iCalendar (RFC 5545)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import icalendar
from django.conf import settings
from django.urls import reverse

from portal.wording.request_texts import requested_units_text
from scheduler.models import Reservation
from scheduler.state.states import ReservationState

PRODUCT = "-//gpupool//calendar//EN"


def calendar_of(reservations: Iterable[Reservation], now: datetime, name: str = "") -> bytes:
    """Return a calendar with the reservations, in the format of a file. ``name`` is the name of a feed."""
    calendar = icalendar.Calendar()
    calendar.add("prodid", PRODUCT)
    calendar.add("version", "2.0")
    if name:
        calendar.add("x-wr-calname", name)
    for reservation in reservations:
        calendar.add_component(_event(reservation, now))
    return bytes(calendar.to_ical())


def _event(reservation: Reservation, now: datetime) -> icalendar.Event:
    event = icalendar.Event()
    event.add("uid", f"{reservation.public_id}@gpupool")
    event.add("dtstamp", now)
    event.add("dtstart", reservation.start)
    event.add("dtend", reservation.end)
    event.add("summary", f"{reservation.name}: {requested_units_text(reservation)}")
    event.add(
        "description",
        f"{reservation.project.team.name}, {reservation.project.name}. State: {reservation.state}.",
    )
    event.add("location", reservation.pool.name)
    event.add("url", f"{settings.GPUPOOL_PORTAL_URL}{reverse('reservation', args=[reservation.public_id])}")
    gone = (ReservationState.CANCELLED, ReservationState.RELEASED)
    event.add("status", "CANCELLED" if reservation.state in gone else "CONFIRMED")
    return event
