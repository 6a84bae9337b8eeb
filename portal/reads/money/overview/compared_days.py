"""Choose the days of two months that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from telemetry.core.billing_calendar import next_month, previous_month
from telemetry.money.billing_months import billing_calendar
from telemetry.reads.overview.spend_change import MonthPart


@dataclass(frozen=True)
class ComparedDays:
    """The whole days of a month so far, and the same days of the month before.

    If the month is over, all its days are compared. Otherwise the day of ``now`` is left out, because it is
    not over.
    """

    before: MonthPart
    now: MonthPart


def compared_days(month: date, now: datetime) -> ComparedDays | None:
    """Return the days of ``month`` to compare; None on the first day of the month."""
    today, following, former = billing_calendar().day_of(now), next_month(month), previous_month(month)
    if today >= following:
        return ComparedDays(MonthPart(former, month), MonthPart(month, following))
    if today <= month:
        return None
    return ComparedDays(MonthPart(former, min(former + (today - month), month)), MonthPart(month, today))
