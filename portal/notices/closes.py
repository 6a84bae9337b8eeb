"""Find months that wait to be closed, for notices to finance."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from portal.notices.pending import PendingNotice
from portal.notices.recipients import finance_ids
from portal.reads.money.closing.waiting_months import can_be_settled, waiting_months
from telemetry.money.billing_months import month_bounds

REMINDER_INTERVAL = timedelta(weeks=1)


def months_to_close(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice to finance about each month that waits to be closed: once, and again each week."""
    months = [month for month in waiting_months(now) if can_be_settled(month, now)]
    users = finance_ids() if months else ()
    for month in months:
        week = (now - month_bounds(month)[1]) // REMINDER_INTERVAL
        numbers = {"month": month.isoformat(), "weeks": week}
        yield PendingNotice("month_waits", f"month waits:{month:%Y-%m}:{week}", users, numbers)
