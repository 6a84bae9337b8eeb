"""Calculate billing months. A billing month is a calendar month in UTC, represented by its first day."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta


def month_of(moment: datetime) -> date:
    """Return the first day of the month (UTC) that contains ``moment``."""
    return moment.astimezone(UTC).date().replace(day=1)


def corrected_month(month: date, start: datetime) -> date | None:
    """Return the closed month that a charge line corrects; None if the line is of its statement's own month.

    ``month`` is the month of the line's statement, and ``start`` is the start of the charged time.
    """
    own = month_of(start)
    return None if own == month else own


def next_month(month: date) -> date:
    """Return the first day of the following month."""
    return (month.replace(day=1) + timedelta(days=32)).replace(day=1)


def month_bounds(month: date) -> tuple[datetime, datetime]:
    """Return ``[start, end)`` of the month as datetimes in UTC."""
    following = next_month(month)
    return (
        datetime(month.year, month.month, 1, tzinfo=UTC),
        datetime(following.year, following.month, 1, tzinfo=UTC),
    )
