"""Build the calendar of one day as a list, for narrow screens."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.urls import reverse
from django.utils import timezone

from portal.reads.calendar.bookings import CalendarBooking, CalendarModelGroup
from portal.web.calendar import timeline as drawing
from portal.web.work.workload_text import gpu_count_text


def agenda_rows(
    groups: list[CalendarModelGroup], window: drawing.TimelineWindow, now: datetime
) -> dict[str, Any]:
    """Return the bookings of one day: today if the window contains ``now``, otherwise its first day."""
    at = now if window.start <= now < window.end else window.start
    local = timezone.localtime(at).replace(hour=0, minute=0, second=0, microsecond=0)
    end = local + timedelta(days=1)
    bookings = [b for group in groups for b in group.bookings if b.end > local and b.start < end]
    bookings.sort(key=lambda b: (b.end <= now, b.state == "running" and b.start <= now, b.start))
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
            for b in bookings[:60]
        ],
        "more": max(0, len(bookings) - 60),
        "before": local - timedelta(days=1),
        "after": end,
        "models": now_free,
    }


def _gpus_in_use(bookings: list[CalendarBooking], now: datetime) -> str:
    """Return the number of GPUs that the bookings take at ``now``, as text."""
    amount = sum(b.gpus for b in bookings if b.state in ("running", "reserved") and b.start <= now < b.end)
    return gpu_count_text(amount)


def booking_url(booking: CalendarBooking) -> str:
    """Return the URL of a booking's page; "" if the viewer may not see the booking's details."""
    if not booking.named:
        return ""
    return reverse(booking.kind, args=[booking.public_id])
