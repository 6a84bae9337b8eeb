"""Parse and shift billing months."""

from __future__ import annotations

from datetime import date, datetime

from portal.reads.money.charged_months import requested_month
from portal.web.page.access import address_checks
from telemetry.money.billing_months import month_of


def month_or_404(text: str | None, now: datetime, first: date | None = None) -> date:
    """Return the first day of a month such as ``2026-03``; of the present month if ``text`` is empty.

    ``first`` is the first month with a charge, if the caller has it. Raises InvalidAddress if the text is no
    month, or if the month has no charges yet.
    """
    if not text:
        return month_of(now)
    with address_checks():
        return requested_month(text, now, first)


def offset_month(month: date, by: int) -> date:
    """Return the first day of the month that is ``by`` months later; earlier if ``by`` is negative."""
    index = month.year * 12 + month.month - 1 + by
    return date(index // 12, index % 12 + 1, 1)
