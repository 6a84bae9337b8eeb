"""Serve a user's reservations as an iCalendar feed, and one reservation as a file."""

from __future__ import annotations

import hashlib
import uuid

from django.core import signing
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.calendar import bookings as reads
from portal.web.page.access import current_user, get_visible_or_404, sign_in_required
from portal.wording.notices.reservation_events import calendar_of
from portal.wording.pages import calendar_pages

ICAL_FEED_SALT = "gpupool.calendar-feed"
FEED_NAME = "GPU reservations"


def ical_feed(request: HttpRequest, token: str) -> HttpResponse:
    """Return the user's reservations as iCalendar. The secret token in the URL authenticates the user."""
    user = _user_of_token(token)
    if user is None:
        raise Http404(calendar_pages.FEED_NOT_FOUND)
    now = timezone.now()
    body = calendar_of(reads.calendar_feed(user, now), now, FEED_NAME)
    answer = HttpResponse(body, content_type="text/calendar; charset=utf-8")
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


@sign_in_required
def reservation_file(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Return one reservation as a file for a calendar program."""
    rows = policy.visible_reservations(current_user(request)).select_related("project__team", "pool")
    reservation = get_visible_or_404(rows, "reservation", public_id=public_id)
    answer = HttpResponse(
        calendar_of([reservation], timezone.now()), content_type="text/calendar; charset=utf-8"
    )
    answer.headers["Content-Disposition"] = f'attachment; filename="reservation-{public_id}.ics"'
    return answer
