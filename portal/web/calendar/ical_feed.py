"""Serve a user's reservations as an iCalendar feed."""

from __future__ import annotations

import hashlib
from datetime import datetime

import icalendar
from django.conf import settings
from django.core import signing
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from portal.models import User
from portal.reads.calendar import bookings as reads
from portal.web.work.workload_text import requested_units_text
from portal.wording.pages import calendar_pages
from scheduler.models import Reservation
from scheduler.state.states import ReservationState

ICAL_FEED_SALT = "gpupool.calendar-feed"


def ical_feed(request: HttpRequest, token: str) -> HttpResponse:
    """Return the user's reservations as iCalendar. The secret token in the URL authenticates the user."""
    user = _user_of_token(token)
    if user is None:
        raise Http404(calendar_pages.FEED_NOT_FOUND)
    now = timezone.now()
    body = icalendar.Calendar()
    body.add("prodid", "-//gpupool//calendar//EN")
    body.add("version", "2.0")
    body.add("x-wr-calname", "GPU reservations")
    for reservation in reads.calendar_feed(user, now):
        body.add_component(_ical_event(reservation, now))
    answer = HttpResponse(body.to_ical(), content_type="text/calendar; charset=utf-8")
    answer.headers["Cache-Control"] = "private, no-store"
    return answer


def ical_feed_token(user: User) -> str:
    """Return the secret token for the URL of a user's feed. It ends when the user's sessions are ended."""
    return signing.dumps(
        {"user": user.pk, "key": _sign_in_fingerprint(user)}, salt=ICAL_FEED_SALT, compress=False
    )


def _user_of_token(token: str) -> User | None:
    """Return the user of a token; None if the token is invalid or the user is not active."""
    try:
        claims = signing.loads(token, salt=ICAL_FEED_SALT)
    except signing.BadSignature:
        return None
    user = User.objects.filter(pk=claims.get("user"), is_active=True).first()
    return user if user is not None and claims.get("key") == _sign_in_fingerprint(user) else None


def _sign_in_fingerprint(user: User) -> str:
    return hashlib.sha256(user.sign_in_state.encode()).hexdigest()[:12]


def _ical_event(reservation: Reservation, now: datetime) -> icalendar.Event:
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
