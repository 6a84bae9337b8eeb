"""Check the period of a request."""

from __future__ import annotations

from datetime import datetime, timedelta

from portal.errors import Invalid
from portal.input_checks import InputChecks
from portal.wording.pages import api_answers


def checked_period(start: datetime, end: datetime, longest: timedelta) -> tuple[datetime, datetime]:
    """Return the bounds of a period that is not empty and at most ``longest``. Raises Invalid."""
    checks = InputChecks()
    start = checks.aware_datetime("start", start)
    end = checks.aware_datetime("end", end)
    checks.done()
    if not start < end <= start + longest:
        message = api_answers.PERIOD_NOT_ALLOWED.format(
            end=end.isoformat(), start=start.isoformat(), days=longest.days
        )
        raise Invalid({"end": message}, {"end": end.isoformat()})
    return start, end
