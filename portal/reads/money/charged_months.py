"""Read which months have charges, and check a month that a request names."""

from __future__ import annotations

from datetime import date, datetime

from django.db.models import Min

from portal.errors import Invalid
from portal.input_checks import FIRST_YEAR, MAX_YEAR, display_value
from portal.wording.pages.money import money_pages
from telemetry.models import Charge
from telemetry.money.billing_months import month_of


def first_charged_month(now: datetime) -> date:
    """Return the first month with a charge. Before the first charge, return the present month."""
    first: date | None = Charge.objects.aggregate(first=Min("month"))["first"]
    return min(first, month_of(now)) if first else month_of(now)


def requested_month(text: str, now: datetime, first: date | None = None) -> date:
    """Return the first day of a month such as ``2026-03``.

    ``first`` is the first month with a charge, if the caller has it. Raises Invalid if the text is no month,
    or if the month is before the first charge or in the future.
    """
    first, last = first or first_charged_month(now), month_of(now)
    month = parse_month(text)
    if month is None or not first <= month <= last:
        words = money_pages.MONTH_NOT_CHARGED if month else money_pages.NOT_A_MONTH
        given = display_value(text)
        raise Invalid({"month": words.format(given=given, first=first, last=last)}, {"month": text[:20]})
    return month


def named_month(text: str) -> date:
    """Return the first day of a month such as ``2026-03``, with or without charges.

    Raises Invalid for any other text.
    """
    month = parse_month(text)
    if month is None or not FIRST_YEAR <= month.year <= MAX_YEAR:
        raise Invalid(
            {"month": money_pages.MONTH_INPUT_INVALID.format(given=text[:20])}, {"month": text[:20]}
        )
    return month


def parse_month(text: str) -> date | None:
    """Return the first day of a month such as ``2026-03``; None if the text is no month."""
    year, _, number = text.partition("-")
    if (
        len(text) != 7
        or len(year) != 4
        or not all(part.isascii() and part.isdigit() for part in (year, number))
    ):
        return None
    return date(int(year), int(number), 1) if 1 <= int(number) <= 12 and int(year) >= 1 else None
