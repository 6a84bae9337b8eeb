"""Check the date from which a price or a price factor is in force.

Charge lines never change. So a price or factor must begin after the charged time to which it would apply.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Max

from portal.input_checks import InputChecks
from portal.wording.formatting import local_time_text
from portal.wording.problems import administration_problems
from telemetry.models import Charge
from telemetry.money.billing_months import month_of

MAX_LINE_LENGTH = timedelta(days=3)  # a billing day is at most 49 hours long


def check_start_date(
    checks: InputChecks, valid_from: Any, now: datetime, what: str, **charged: Any
) -> datetime:
    """Return ``valid_from`` in UTC. Note a problem if it is past, or if a charge line ends after it.

    ``charged`` selects the charge lines, as filters of Charge. ``what`` names their subject in the message,
    such as a GPU model. Any time of the present hour counts as not past.
    """
    clean = checks.aware_datetime("valid_from", valid_from)
    if "valid_from" in checks.problems:
        return clean
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    until = charged_until(clean, **charged)
    allowed = max(hour, _next_full_minute(until)) if until else hour
    given = clean.isoformat()
    if until is not None:
        message = administration_problems.VALID_FROM_IS_CHARGED.format(
            valid_from=given, what=what, until=local_time_text(until), allowed=local_time_text(allowed)
        )
        checks.note("valid_from", given, message)
    elif clean < hour:
        message = administration_problems.VALID_FROM_IS_PAST.format(
            valid_from=given, allowed=local_time_text(allowed)
        )
        checks.note("valid_from", given, message)
    return clean


def charged_until(valid_from: datetime, **charged: Any) -> datetime | None:
    """Return the end of the last charge line that ends after ``valid_from``; None if there is none."""
    # A line that ends after ``valid_from`` is on the statement of its own month or, as a correction, of a
    # later month. No line is longer than a billing day, so earlier months have no such line.
    first_month = month_of(valid_from - MAX_LINE_LENGTH)
    lines = Charge.objects.filter(month__gte=first_month, end__gt=valid_from, **charged)
    until: datetime | None = lines.aggregate(until=Max("end"))["until"]
    return until


def _next_full_minute(at: datetime) -> datetime:
    """Round a time up to a full minute. Messages show minutes only."""
    minute = at.replace(second=0, microsecond=0)
    return minute if minute == at else minute + timedelta(minutes=1)
