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
from portal.reads.calendar import bookings as reads
from portal.reads.calendar.bookings import CalendarBooking, CalendarModelGroup
from portal.web.calendar import timeline as drawing
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.web.work.workload_card import gpu_count_text, requested_units_text
from scheduler.models import Pool, Reservation, Team
from scheduler.state.states import ReservationState

MAX_UNFOLDED_HOSTS = 24  # a pool up to this size is shown unfolded
ICAL_FEED_SALT = "gpupool.calendar-feed"


class CalendarFilterForm(forms.Form):
    pool = forms.ChoiceField(required=False, label="Pool")
    team = forms.ChoiceField(required=False, label="Team")
    zoom = forms.CharField(required=False, widget=forms.HiddenInput)
    at = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, pools: list[Pool], teams: list[Team], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["pool"].choices = [("", "All pools"), *((pool.slug, pool.name) for pool in pools)]
        fields["team"].choices = [("", "All teams"), *((team.slug, team.name) for team in teams)]


@sign_in_required
def calendar(request: HttpRequest) -> HttpResponse:
    """``?zoom=`` hour, day, week or month, ``?at=`` a day, ``?pool=`` and ``?team=``; ``?open=`` and ``?shut=`` fold models."""
    user, now = current_user(request), timezone.now()
    zoom = drawing.ZOOMS.get(request.GET.get("zoom", ""), drawing.ZOOMS["week"])
    made = drawing.timeline_window(zoom, _requested_time(request, now), now)
    pools = list(policy.visible_pools(user).order_by("name"))
    teams = reads.filterable_teams(user)
    filters = CalendarFilterForm(request.GET, pools=pools, teams=teams)
    filters.is_valid()
    chosen = [pool for pool in pools if pool.slug == filters.cleaned_data.get("pool")] or pools
    groups, cut_off = reads.calendar_window(
        user, chosen, made.start, made.end, now, filters.cleaned_data.get("team", "")
    )
    context = {
        "frame": made,
        "filters": filters,
        "rows": drawing.timeline_rows(
            groups, made, _unfolded_models(request, groups), lambda key: _fold_url(request, groups, key)
        ),
        "axis": drawing.time_axis(made),
        "teams": [team for team in teams if any(b.team.pk == team.pk for g in groups for b in g.bookings)],
        "agenda": _agenda(groups, made, now),
        "words": _summary_text(made, groups),
        "counts": _summary_text(made, groups),
        "empty": not groups,
        "cut_off": cut_off,
        "most": reads.MAX_BOOKINGS,
        "zooms": [
            {"label": z.label, "url": _url_with(request, zoom=z.name), "current": z is zoom}
            for z in drawing.ZOOMS.values()
        ],
        "earlier": _url_with(request, at=f"{_adjacent_window(made, -1):%Y-%m-%dT%H:%M}"),
        "later": _url_with(request, at=f"{_adjacent_window(made, 1):%Y-%m-%dT%H:%M}"),
        "today": _url_with(request, at=None),
        "feed_url": f"{settings.GPUPOOL_PORTAL_URL}{reverse('calendar-ical', args=[ical_feed_token(user)])}",
        "may_ask": policy.launchable_projects(user).exists(),
        "request_links": _request_links(groups, made, now),
    }
    return live_refresh.render_live_page(
        request,
        "work/calendar.html",
        "work/calendar_part.html",
        context,
        topics=["calendar", "queue"],
        now=now,
    )


def ical_feed(request: HttpRequest, token: str) -> HttpResponse:
    """A person's reservations as iCalendar, for calendar programs: the secret address stands for the person."""
    user = _user_of_token(token)
    if user is None:
        raise Http404("There is no such calendar feed.")
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
    """The secret of a person's feed. It changes with the password, so changing that shuts old addresses."""
    return signing.dumps(
        {"user": user.pk, "key": _password_fingerprint(user)}, salt=ICAL_FEED_SALT, compress=False
    )


def _user_of_token(token: str) -> User | None:
    try:
        told = signing.loads(token, salt=ICAL_FEED_SALT)
    except signing.BadSignature:
        return None
    user = User.objects.filter(pk=told.get("user"), is_active=True).first()
    return user if user is not None and told.get("key") == _password_fingerprint(user) else None


def _password_fingerprint(user: User) -> str:
    return hashlib.sha256(user.password.encode()).hexdigest()[:12]


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


# -- the address -------------------------------------------------------------------------------------------------------


def _requested_time(request: HttpRequest, now: datetime) -> datetime:
    """The moment that ``?at=`` names, in the viewer's zone; now where it is none or lies outside what can be reckoned."""
    try:
        at = datetime.fromisoformat(request.GET.get("at", ""))
    except ValueError:
        return now
    if not 2001 <= at.year <= 2199:
        return now
    return at if at.tzinfo else timezone.make_aware(at)


def _adjacent_window(made: drawing.TimelineWindow, by: int) -> datetime:
    """A moment whose window is the one before or after this one."""
    if made.zoom.name == "hour":
        return timezone.localtime(made.start + timedelta(hours=1) + by * timedelta(hours=made.zoom.hours - 1))
    shown = made.start + timedelta(days=1 if made.zoom.name == "week" else 0)
    return timezone.localtime(shown + by * timedelta(days=made.zoom.days) + timedelta(hours=12))


def _url_with(request: HttpRequest, **changes: str | None) -> str:
    query = request.GET.copy()
    for name in ("part", "version"):
        query.pop(name, None)
    for name, value in changes.items():
        query.pop(name, None)
        if value is not None:
            query[name] = value
    text = query.urlencode()
    return f"{request.path}?{text}" if text else request.path


def _unfolded_models(request: HttpRequest, groups: list[CalendarModelGroup]) -> set[str]:
    """Models unfolded: those of a pool that is small enough, changed by ``?open=`` and ``?shut=``."""
    small = sum(len(group.hosts) for group in groups) <= MAX_UNFOLDED_HOSTS
    opened = {group.key for group in groups} if small else set()
    return (opened | set(request.GET.getlist("open"))) - set(request.GET.getlist("shut"))


def _fold_url(request: HttpRequest, groups: list[CalendarModelGroup], key: str) -> str:
    query = request.GET.copy()
    for name in ("part", "version"):
        query.pop(name, None)
    is_open = key in _unfolded_models(request, groups)
    given_open = [k for k in query.getlist("open") if k != key]
    given_shut = [k for k in query.getlist("shut") if k != key]
    query.setlist("open", given_open if is_open else [*given_open, key])
    query.setlist("shut", [*given_shut, key] if is_open else given_shut)
    return f"{request.path}?{query.urlencode()}"


# -- words -------------------------------------------------------------------------------------------------------------


def _summary_text(made: drawing.TimelineWindow, groups: list[CalendarModelGroup]) -> str:
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


def _agenda(groups: list[CalendarModelGroup], made: drawing.TimelineWindow, now: datetime) -> dict[str, Any]:
    """The day at now (or the window's first) as a list, for narrow screens."""
    at = now if made.start <= now < made.end else made.start
    local = timezone.localtime(at).replace(hour=0, minute=0, second=0, microsecond=0)
    end = local + timedelta(days=1)
    found = [b for group in groups for b in group.bookings if b.end > local and b.start < end]
    found.sort(key=lambda b: (b.end <= now, b.state == "running" and b.start <= now, b.start))
    now_free = [
        {
            "model": group.model,
            "pool": group.pool.name,
            "taken": _gpus_in_use(group.bookings, now),
            "gpus": group.gpus,
        }
        for group in groups
    ]
    return {
        "day": local,
        "bookings": [
            {"booking": b, "url": booking_url(b), "size": drawing.booking_size(b, b.model)}
            for b in found[:60]
        ],
        "more": max(0, len(found) - 60),
        "before": local - timedelta(days=1),
        "after": end,
        "models": now_free,
    }


def _gpus_in_use(bookings: list[CalendarBooking], now: datetime) -> str:
    amount = sum(b.gpus for b in bookings if b.state in ("running", "reserved") and b.start <= now < b.end)
    return gpu_count_text(amount)


def booking_url(booking: CalendarBooking) -> str:
    """The page of a booking; empty for what the viewer may not see."""
    if not booking.named:
        return ""
    return reverse(booking.kind, args=[booking.public_id])


def _request_links(
    groups: list[CalendarModelGroup], made: drawing.TimelineWindow, now: datetime
) -> list[dict[str, str]]:
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
