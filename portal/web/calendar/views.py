"""Render the calendar page: the bookings of GPUs by team, grouped by pool, model and host."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.reads.calendar import bookings as reads
from portal.reads.calendar.bookings import CalendarModelGroup
from portal.web.calendar import timeline as drawing
from portal.web.calendar.agenda import agenda_rows
from portal.web.calendar.ical_feed import ical_feed_token
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.wording.pages import calendar_pages
from scheduler.models import Pool, Team

MAX_UNFOLDED_HOSTS = 24  # with more hosts, models are folded until the user unfolds them


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
    """Render the calendar.

    ``?zoom=`` and ``?at=`` choose the window, ``?pool=`` and ``?team=`` filter. ``?open=`` unfolds a model.
    """
    user, now = current_user(request), timezone.now()
    zoom = drawing.ZOOMS.get(request.GET.get("zoom", ""), drawing.ZOOMS["week"])
    window = drawing.timeline_window(zoom, _requested_time(request, now), now)
    pools = list(policy.visible_pools(user).order_by("name"))
    teams = reads.filterable_teams(user)
    filters = CalendarFilterForm(request.GET, pools=pools, teams=teams)
    filters.is_valid()
    chosen = [pool for pool in pools if pool.slug == filters.cleaned_data.get("pool")] or pools
    groups, cut_off = reads.calendar_window(
        user, chosen, window.start, window.end, now, filters.cleaned_data.get("team", "")
    )
    context = {
        "frame": window,
        "filters": filters,
        "rows": drawing.timeline_rows(
            groups, window, _unfolded_models(request, groups), lambda key: _fold_url(request, groups, key)
        ),
        "axis": drawing.time_axis(window),
        "teams": [team for team in teams if any(b.team.pk == team.pk for g in groups for b in g.bookings)],
        "agenda": agenda_rows(groups, window, now),
        "words": _summary_text(window, groups),
        "counts": _summary_text(window, groups),
        "empty": not groups,
        "cut_off": cut_off,
        "most": reads.MAX_BOOKINGS,
        "zooms": [
            {"label": z.label, "url": _url_with(request, zoom=z.name), "current": z is zoom}
            for z in drawing.ZOOMS.values()
        ],
        "earlier": _url_with(request, at=f"{_adjacent_window(window, -1):%Y-%m-%dT%H:%M}"),
        "later": _url_with(request, at=f"{_adjacent_window(window, 1):%Y-%m-%dT%H:%M}"),
        "today": _url_with(request, at=None),
        "feed_url": f"{settings.GPUPOOL_PORTAL_URL}{reverse('calendar-ical', args=[ical_feed_token(user)])}",
        "may_ask": policy.launchable_projects(user).exists(),
        "request_links": _request_links(groups, window, now),
    }
    return live_refresh.render_live_page(
        request,
        "work/calendar.html",
        "work/calendar_part.html",
        context,
        topics=["calendar", "queue"],
        now=now,
    )


# -- query string --------------------------------------------------------------------------------------------


def _requested_time(request: HttpRequest, now: datetime) -> datetime:
    """Return the time of ``?at=``, or ``now`` if it is invalid or out of range.

    A time without a UTC offset is in the viewer's time zone.
    """
    try:
        at = datetime.fromisoformat(request.GET.get("at", ""))
    except ValueError:
        return now
    if not 2001 <= at.year <= 2199:
        return now
    return at if at.tzinfo else timezone.make_aware(at)


def _adjacent_window(window: drawing.TimelineWindow, by: int) -> datetime:
    """Return a time in the previous window (``by`` is -1) or in the next window (``by`` is 1)."""
    if window.zoom.name == "hour":
        return timezone.localtime(
            window.start + timedelta(hours=1) + by * timedelta(hours=window.zoom.hours - 1)
        )
    shown = window.start + timedelta(days=1 if window.zoom.name == "week" else 0)
    return timezone.localtime(shown + by * timedelta(days=window.zoom.days) + timedelta(hours=12))


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
    """Return the keys of the unfolded models.

    If there are few hosts, all models are unfolded. ``?open=`` adds models, ``?shut=`` removes models.
    """
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


# -- texts ---------------------------------------------------------------------------------------------------


def _summary_text(window: drawing.TimelineWindow, groups: list[CalendarModelGroup]) -> str:
    first, last = timezone.localtime(window.start), timezone.localtime(window.end - timedelta(minutes=1))
    count = sum(len(group.bookings) for group in groups)
    if first.date() == last.date():
        span = f"{first:%A} {first.day} {first:%B %Y}" + (
            f", {first:%H:%M} to {last + timedelta(minutes=1):%H:%M}" if window.zoom.name == "hour" else ""
        )
    elif first.month == last.month:
        span = f"{first.day} to {last.day} {last:%B %Y}"
    else:
        span = f"{first.day} {first:%B} to {last.day} {last:%B %Y}"
    return calendar_pages.BOOKINGS_IN_VIEW.format(
        period=span, bookings=count, ending="s" if count != 1 else ""
    )


def _request_links(
    groups: list[CalendarModelGroup], window: drawing.TimelineWindow, now: datetime
) -> list[dict[str, str]]:
    """Return one link per model to the request form, for people who cannot draw a window with the pointer."""
    start = max(window.start, (now + timedelta(hours=1)).replace(minute=0, second=0, microsecond=0))
    local = timezone.localtime(start)
    return [
        {
            "label": group.model.replace("-", " "),
            "url": f"{reverse('ask')}?kind=reservation&target={group.pool.slug}%7C{group.model}%7C"
            f"&start={local:%Y-%m-%dT%H:%M}",
        }
        for group in groups
    ]
