"""Load the calendar of billing months and days, and add time zones to it."""

from __future__ import annotations

import time
from datetime import date, datetime, timedelta
from typing import Any

from telemetry.core.billing_calendar import BillingCalendar, ZoneStart, corrected_month, next_month
from telemetry.models import BillingZone

__all__ = [
    "add_billing_zone",
    "billing_calendar",
    "corrected_month",
    "forget_calendar",
    "month_bounds",
    "month_of",
    "next_month",
]

# A new zone is recorded at least this long before its first month begins. So a calendar that a process has
# kept for CACHE_SECONDS is never too old for the time that is charged.
LEAST_NOTICE = timedelta(hours=1)
CACHE_SECONDS = 60.0

_cached: tuple[float, BillingCalendar] | None = None


def billing_calendar() -> BillingCalendar:
    """Return the calendar of billing months. It is read from the database at most once a minute."""
    global _cached
    now = time.monotonic()
    if _cached is None or now - _cached[0] > CACHE_SECONDS:
        rows = BillingZone.objects.values_list("first_month", "time_zone")
        _cached = (now, BillingCalendar(ZoneStart(*row) for row in rows))
    return _cached[1]


def month_of(moment: datetime) -> date:
    """Return the first day of the billing month that contains ``moment``."""
    return billing_calendar().month_of(moment)


def month_bounds(month: date) -> tuple[datetime, datetime]:
    """Return ``[start, end)`` of a billing month."""
    return billing_calendar().month_bounds(month)


def forget_calendar() -> None:
    """Read the calendar anew at its next use."""
    global _cached
    _cached = None


def add_billing_zone(first_month: date, time_zone: str, created_by: Any, now: datetime) -> BillingZone:
    """Set the time zone of billing months from ``first_month`` on, and return the row.

    The caller has checked that the month begins LEAST_NOTICE after ``now`` or later.
    """
    row = BillingZone.objects.create(
        first_month=first_month, time_zone=time_zone, created_by=created_by, created_at=now
    )
    forget_calendar()
    return row
