"""Render times in the viewer's time zone, and the age of data."""

from __future__ import annotations

from datetime import UTC, date, datetime

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from portal.web.components.quantities import UNKNOWN_TEXT, short_duration


def _time_text(local: datetime, style: str, local_now: datetime | None) -> str:
    if style == "auto":
        if local_now is None or local.year != local_now.year:
            style = "full"
        elif local.date() == local_now.date():
            style = "clock"
        else:
            style = "day"
    if style == "clock":
        return f"{local:%H:%M}"
    if style == "seconds":
        return f"{local:%H:%M:%S}"
    if style == "date":
        return f"{local.day} {local:%b %Y}"
    if style == "day":
        return f"{_day_name(local.date(), local_now)} {local:%H:%M}"
    if style == "full":
        return f"{local.day} {local:%b %Y %H:%M}"
    raise template.TemplateSyntaxError(
        f"when: style {style!r}; allowed are auto, clock, seconds, day, date, full"
    )


def _day_name(day: date, local_now: datetime | None) -> str:
    if local_now is not None:
        days = (day - local_now.date()).days
        name = {0: "today", 1: "tomorrow", -1: "yesterday"}.get(days)
        if name:
            return name
    return f"{day:%a} {day.day} {day:%b}"


def _time_element(moment: datetime, text: str, *, relative: bool = False) -> SafeString:
    utc = moment.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{} UTC"{}>{}</time>',
        f"{utc:%Y-%m-%dT%H:%M:%SZ}",
        f"{utc:%Y-%m-%d %H:%M:%S}",
        mark_safe(" data-relative") if relative else "",
        text,
    )


def when(moment: datetime | None, now: datetime | None = None, style: str = "auto") -> str:
    """Render a time in the viewer's time zone, with UTC as a tooltip. None gives "unknown".

    The styles are ``auto``, ``clock``, ``seconds``, ``day`` (``tomorrow 09:00`` or ``Mon 24 Nov 09:00``),
    ``date`` and ``full``. ``auto`` shows only the clock if the time is today; it needs ``now``.
    """
    if moment is None:
        return UNKNOWN_TEXT
    local_now = None if now is None else timezone.localtime(now)
    return _time_element(moment, _time_text(timezone.localtime(moment), style, local_now))


def window(start: datetime, end: datetime | None, now: datetime | None = None) -> SafeString:
    """Render a period: ``tomorrow 09:00 to 17:00``. The end shows its day only if the days differ."""
    local_now = None if now is None else timezone.localtime(now)
    first = timezone.localtime(start)
    opening = _time_element(start, _time_text(first, "day", local_now))
    if end is None:
        return format_html("since {}", opening)
    last = timezone.localtime(end)
    style = "clock" if last.date() == first.date() else "day"
    return format_html("{} to {}", opening, _time_element(end, _time_text(last, style, local_now)))


def _relative_time_text(moment: datetime, now: datetime) -> str:
    seconds = int((now - moment).total_seconds())
    if -1 <= seconds <= 1:
        return "now"
    return f"{short_duration(seconds)} ago" if seconds > 0 else f"in {short_duration(-seconds)}"


def ago(moment: datetime | None, now: datetime) -> str:
    """Render ``4 s ago`` or ``in 3 h 14 min``. The browser updates the text. None gives "unknown"."""
    return (
        UNKNOWN_TEXT
        if moment is None
        else _time_element(moment, _relative_time_text(moment, now), relative=True)
    )


def freshness(
    moment: datetime | None, now: datetime, stale_after: int = 30, word: str = "Live"
) -> SafeString:
    """Render the age of the shown data. The browser marks it stale after ``stale_after`` seconds."""
    if moment is None:
        return mark_safe('<span class="live stale">No data yet</span>')
    stale = (now - moment).total_seconds() > stale_after
    return format_html(
        '<span class="{}" data-stale-after="{}"><span data-live="{}" data-stale="Stale, last data">{}</span>'
        " {}</span>",
        "live stale" if stale else "live",
        stale_after,
        f"{word},",
        "Stale, last data" if stale else f"{word},",
        ago(moment, now),
    )
