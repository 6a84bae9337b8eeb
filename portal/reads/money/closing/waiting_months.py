"""Find the months that are over and wait to be closed."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from django.db.models import Q

from scheduler.models import Gpu
from telemetry.models import ChargedUntil, Statement, StatementState
from telemetry.money.billing_months import month_bounds, month_of

# After this time, finance is notified even if a GPU is not charged to the end of the month.
LONGEST_WAIT_FOR_CHARGES = timedelta(days=1)


def waiting_months(now: datetime) -> list[date]:
    """Return the months that are over, have a statement and are not closed, oldest first. Runs one query."""
    months = Statement.objects.filter(state=StatementState.OPEN, month__lt=month_of(now))
    return list(months.order_by("month").values_list("month", flat=True))


def can_be_settled(month: date, now: datetime) -> bool:
    """Return True if every GPU is charged to the end of a month, or if it ended at least a day ago."""
    end = month_bounds(month)[1]
    if now >= end + LONGEST_WAIT_FOR_CHARGES:
        return True
    in_service = Q(gpu__retired_at=None) | Q(gpu__retired_at__gte=end)
    behind = ChargedUntil.objects.filter(in_service, until__lt=end, since__lt=end)
    return not behind.exists() and not Gpu.objects.filter(charged=None, created_at__lt=end).exists()
