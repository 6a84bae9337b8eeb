"""Parse and shift billing months."""

from __future__ import annotations

from datetime import date, datetime

from django.http import Http404

from portal.wording.pages import money_pages
from telemetry.money.billing_months import month_of


def month_or_404(text: str | None, now: datetime) -> date:
    """Return the first day of a month such as ``2026-03``; of the current month if ``text`` is empty.

    Raises Http404 if the text is no month.
    """
    if not text:
        return month_of(now)
    try:
        year, month = text.split("-")
        first_day = date(int(year), int(month), 1)
    except ValueError:
        raise Http404(money_pages.NOT_A_MONTH.format(given=text[:20])) from None
    if not 2000 <= first_day.year <= 2200:
        raise Http404(money_pages.YEAR_OUT_OF_RANGE.format(given=text[:20]))
    return first_day


def offset_month(month: date, by: int) -> date:
    """Return the first day of the month that is ``by`` months later; earlier if ``by`` is negative."""
    index = month.year * 12 + month.month - 1 + by
    return date(index // 12, index % 12 + 1, 1)
