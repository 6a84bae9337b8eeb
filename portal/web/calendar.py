"""The calendar: who has which GPUs when, by pool, model and host; on a phone the day as a list; and the iCal feed."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any

import icalendar
from django import forms
from django.conf import settings
from django.core import signing
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.selectors import calendar as reads
from portal.selectors.calendar import Booking, ModelGroup
from portal.web import calendar_drawing as drawing
from portal.web import live
from portal.web.access import signed_in, viewer
from portal.web.home_cards import asked, count_of
from scheduler.models import Pool, Reservation, Team
from scheduler.states import ReservationState

OPEN_HOSTS = 24  # a pool up to this size is shown unfolded
FEED_SALT = "gpupool.calendar-feed"


class CalendarFilters(forms.Form):
    pool = forms.ChoiceField(required=False, label="Pool")
    team = forms.ChoiceField(required=False, label="Team")
    zoom = forms.CharField(required=False, widget=forms.HiddenInput)
    at = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, pools: list[Pool], teams: list[Team], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["pool"].choices = [("", "All pools"), *((pool.slug, pool.name) for pool in pools)]
        fields["team"].choices = [("", "All teams"), *((team.slug, team.name) for team in teams)]


@signed_in
def calendar(request: HttpRequest) -> HttpResponse:
    """``?zoom=`` hour, day, week or month, ``?at=`` a day, ``?pool=`` and ``?team=``; ``?open=`` and ``?shut=`` fold models."""
    user, now = viewer(request), timezone.now()
    zoom = drawing.ZOOMS.get(request.GET.get("zoom", ""), drawing.ZOOMS["week"])
    made = drawing.frame(zoom, _at(request, now), now)
    pools = list(policy.visible_pools(user).order_by("name"))
    teams = reads.teams_shown(user)
    filters = CalendarFilters(request.GET, pools=pools, teams=teams)
    filters.is_valid()
    chosen = [pool for pool in pools if pool.slug == filters.cleaned_data.get("pool")] or pools
    groups, cut_off = reads.window(user, chosen, made.start, made.end, now, filters.cleaned_data.get("team", ""))
    context = {
        "frame": made,
        "filters": filters,
        "rows": drawing.rows(groups, made, _opened(request, groups), lambda key: _folding(request, groups, key)),
        "axis": drawing.axis(made),
        "teams": [team for team in teams if any(b.team.pk == team.pk for g in groups for b in g.bookings)],
        "agenda": _agenda(groups, made, now),
        "words": _words(made, groups),
        "counts": _words(made, groups),
        "empty": not groups,
        "cut_off": cut_off,
        "most": reads.MOST_BOOKINGS,
        "zooms": [
            {"label": z.label, "url": _with(request, zoom=z.name), "current": z is zoom} for z in drawing.ZOOMS.values()
        ],
        "earlier": _with(request, at=f"{_moved(made, -1):%Y-%m-%dT%H:%M}"),
        "later": _with(request, at=f"{_moved(made, 1):%Y-%m-%dT%H:%M}"),
        "today": _with(request, at=None),
        "feed_url": f"{settings.GPUPOOL_PORTAL_URL}{reverse('calendar-ical', args=[feed_token(user)])}",
        "may_ask": policy.launchable_projects(user).exists(),
        "request_links": _request_links(groups, made, now),
    }
    return live.page(
        request, "work/calendar.html", "work/calendar_part.html", context, topics=["calendar", "queue"], now=now
    )


def feed(request: HttpRequest, token: str) -> HttpResponse:
    """A person's reservations as iCalendar, for calendar programs: the secret address stands for the person."""
    user = _of_token(token)
    if user is None:
        raise Http404("There is no such calendar feed.")
    now = timezone.now()
    body = icalendar.Calendar()
    body.add("prodid", "-//gpupool//calendar//EN")
    body.add("version", "2.0")
    body.add("x-wr-calname", "GPU reservations")
    for reservation in reads.feed(user, now):
        body.add_component(_event(reservation, now))
    answer = HttpResponse(body.to_ical(), content_type="text/calendar; charset=utf-8")
    answer.headers["Cache-Control"] = "private, no-store"
    return answer


def feed_token(user: User) -> str:
    """The secret of a person's feed. It changes with the password, so changing that shuts old addresses."""
    return signing.dumps({"user": user.pk, "key": _key(user)}, salt=FEED_SALT, compress=False)


def _of_token(token: str) -> User | None:
    try:
        told = signing.loads(token, salt=FEED_SALT)
    except signing.BadSignature:
        return None
    user = User.objects.filter(pk=told.get("user"), is_active=True).first()
    return user if user is not None and told.get("key") == _key(user) else None


def _key(user: User) -> str:
    return hashlib.sha256(user.password.encode()).hexdigest()[:12]


def _event(reservation: Reservation, now: datetime) -> icalendar.Event:
    event = icalendar.Event()
    event.add("uid", f"{reservation.public_id}@gpupool")
    event.add("dtstamp", now)
    event.add("dtstart", reservation.start)
    event.add("dtend", reservation.end)
    event.add("summary", f"{reservation.name}: {asked(reservation)}")
    event.add(
        "description", f"{reservation.project.team.name}, {reservation.project.name}. State: {reservation.state}."
    )
    event.add("location", reservation.pool.name)
    event.add("url", f"{settings.GPUPOOL_PORTAL_URL}{reverse('reservation', args=[reservation.public_id])}")
    gone = (ReservationState.CANCELLED, ReservationState.RELEASED)
    event.add("status", "CANCELLED" if reservation.state in gone else "CONFIRMED")
    return event


# -- the address -------------------------------------------------------------------------------------------------------


def _at(request: HttpRequest, now: datetime) -> datetime:
    """The moment that ``?at=`` names, in the viewer's zone; now where it is none or lies outside what can be reckoned."""
    try:
        at = datetime.fromisoformat(request.GET.get("at", ""))
    except ValueError:
        return now
    if not 2001 <= at.year <= 2199:
        return now
    return at if at.tzinfo else timezone.make_aware(at)


def _moved(made: drawing.Frame, by: int) -> datetime:
    """A moment whose window is the one before or after this one."""
    if made.zoom.name == "hour":
        return timezone.localtime(made.start + timedelta(hours=1) + by * timedelta(hours=made.zoom.hours - 1))
    shown = made.start + timedelta(days=1 if made.zoom.name == "week" else 0)
    return timezone.localtime(shown + by * timedelta(days=made.zoom.days) + timedelta(hours=12))


def _with(request: HttpRequest, **changes: str | None) -> str:
    query = request.GET.copy()
    for name in ("part", "version"):
        query.pop(name, None)
    for name, value in changes.items():
        query.pop(name, None)
        if value is not None:
            query[name] = value
    text = query.urlencode()
    return f"{request.path}?{text}" if text else request.path


def _opened(request: HttpRequest, groups: list[ModelGroup]) -> set[str]:
    """Models unfolded: those of a pool that is small enough, changed by ``?open=`` and ``?shut=``."""
    small = sum(len(group.hosts) for group in groups) <= OPEN_HOSTS
    opened = {group.key for group in groups} if small else set()
    return (opened | set(request.GET.getlist("open"))) - set(request.GET.getlist("shut"))


def _folding(request: HttpRequest, groups: list[ModelGroup], key: str) -> str:
    query = request.GET.copy()
    for name in ("part", "version"):
        query.pop(name, None)
    is_open = key in _opened(request, groups)
    given_open = [k for k in query.getlist("open") if k != key]
    given_shut = [k for k in query.getlist("shut") if k != key]
    query.setlist("open", given_open if is_open else [*given_open, key])
    query.setlist("shut", [*given_shut, key] if is_open else given_shut)
    return f"{request.path}?{query.urlencode()}"


# -- words -------------------------------------------------------------------------------------------------------------


def _words(made: drawing.Frame, groups: list[ModelGroup]) -> str:
    first, last = timezone.localtime(made.start), timezone.localtime(made.end - timedelta(minutes=1))
    count = sum(len(group.bookings) for group in groups)
    if first.date() == last.date():
        span = f"{first:%A} {first.day} {first:%B %Y}" + (
            f", {first:%H:%M} to {last + timedelta(minutes=1):%H:%M}" if made.zoom.name == "hour" else ""
        )
    elif first.month == last.month:
        span = f"{first.day} to {last.day} {last:%B %Y}"
    else:
        span = f"{first.day} {first:%B} to {last.day} {last:%B %Y}"
    return f"{span}, {count} booking{'s' if count != 1 else ''} in view."


def _agenda(groups: list[ModelGroup], made: drawing.Frame, now: datetime) -> dict[str, Any]:
    """The day at now (or the window's first) as a list, for narrow screens."""
    at = now if made.start <= now < made.end else made.start
    local = timezone.localtime(at).replace(hour=0, minute=0, second=0, microsecond=0)
    end = local + timedelta(days=1)
    found = [b for group in groups for b in group.bookings if b.end > local and b.start < end]
    found.sort(key=lambda b: (b.end <= now, b.state == "running" and b.start <= now, b.start))
    now_free = [
        {"model": group.model, "pool": group.pool.name, "taken": _taken(group.bookings, now), "gpus": group.gpus}
        for group in groups
    ]
    return {
        "day": local,
        "bookings": [{"booking": b, "url": url_of(b), "size": drawing.size_of(b, b.model)} for b in found[:60]],
        "more": max(0, len(found) - 60),
        "before": local - timedelta(days=1),
        "after": end,
        "models": now_free,
    }


def _taken(bookings: list[Booking], now: datetime) -> str:
    amount = sum(b.gpus for b in bookings if b.state in ("running", "reserved") and b.start <= now < b.end)
    return count_of(amount)


def url_of(booking: Booking) -> str:
    """The page of a booking; empty for what the viewer may not see."""
    if not booking.named:
        return ""
    return reverse(booking.kind, args=[booking.public_id])


def _request_links(groups: list[ModelGroup], made: drawing.Frame, now: datetime) -> list[dict[str, str]]:
    """One link per model to the request form at this window's start: the way without a pointer."""
    start = max(made.start, (now + timedelta(hours=1)).replace(minute=0, second=0, microsecond=0))
    local = timezone.localtime(start)
    return [
        {
            "label": group.model.replace("-", " "),
            "url": f"{reverse('ask')}?kind=reservation&target={group.pool.slug}%7C{group.model}%7C&start={local:%Y-%m-%dT%H:%M}",
        }
        for group in groups
    ]
