"""Months of money: first days, and their bounds in UTC."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta


def month_of(moment: datetime) -> date:
    """The first day of the month ``moment`` lies in, in UTC."""
    return moment.astimezone(UTC).date().replace(day=1)


def next_month(month: date) -> date:
    """The first day of the month after."""
    return (month.replace(day=1) + timedelta(days=32)).replace(day=1)


def month_bounds(month: date) -> tuple[datetime, datetime]:
    """``[start, end)`` of the month, aware, in UTC."""
    following = next_month(month)
    return (
        datetime(month.year, month.month, 1, tzinfo=UTC),
        datetime(following.year, following.month, 1, tzinfo=UTC),
    )
