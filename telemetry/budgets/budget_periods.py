"""Calculate the periods of budgets. A period is a calendar month, quarter or year, named by its first day."""

from __future__ import annotations

from datetime import date, datetime

from telemetry.money.billing_months import billing_calendar

MONTHS_PER_PERIOD = {"month": 1, "quarter": 3, "year": 12}


def period_of(period: str, day: date) -> date:
    """Return the first day of the month, quarter or year that contains ``day``."""
    length = MONTHS_PER_PERIOD[period]
    return date(day.year, (day.month - 1) // length * length + 1, 1)


def next_period(period: str, first: date) -> date:
    """Return the first day of the next period after the period that begins at ``first``."""
    return _add_months(first, MONTHS_PER_PERIOD[period])


def previous_period(period: str, first: date) -> date:
    """Return the first day of the last period before the period that begins at ``first``."""
    return _add_months(first, -MONTHS_PER_PERIOD[period])


def period_end(period: str, first: date) -> datetime:
    """Return the end of the period that begins at ``first``. The next period starts then."""
    return billing_calendar().month_bounds(next_period(period, first))[0]


def _add_months(first: date, months: int) -> date:
    number = first.year * 12 + first.month - 1 + months
    return date(number // 12, number % 12 + 1, 1)
