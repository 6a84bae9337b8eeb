"""Set how long samples and minute rollups are kept."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal.input_checks import InputChecks
from portal.services import audit
from portal.wording.problems import administration_problems
from telemetry.models import Retention

MIN_DAYS = 2
# Open months and pages of up to 62 days need the hours.
MIN_HOUR_DAYS = 100
MAX_DAYS = 3650
FIELDS = ("sample_days", "minute_days", "hour_days", "day_days")


def set_sample_retention(
    *,
    sample_days: int,
    minute_days: int,
    hour_days: int | None = None,
    day_days: int | None = None,
    now: datetime,
    via: str = "program",
) -> Retention:
    """Set the retention of samples and of rollups in days, and write an audit record.

    Hours and days are kept without limit if their number is None.

    Minute rollups must be kept at least a day longer than samples: when a late sample changes a minute, the
    hour is merged again from all of its minutes. No permission is checked, because only people who may run
    commands on the server can call this function. Raises Invalid.
    """
    checks = InputChecks()
    sample_days = checks.count("sample_days", sample_days, MIN_DAYS, MAX_DAYS - 1)
    minute_days = checks.count("minute_days", minute_days, MIN_DAYS + 1, MAX_DAYS)
    if not checks.problems and minute_days <= sample_days:
        checks.note(
            "minute_days",
            minute_days,
            administration_problems.MINUTES_SHORTER_THAN_SAMPLES.format(
                given=minute_days, least=sample_days + 1, sample_days=sample_days
            ),
        )
    if hour_days is not None:
        hour_days = checks.count("hour_days", hour_days, max(MIN_HOUR_DAYS, minute_days), MAX_DAYS)
    if day_days is not None:
        if hour_days is None:
            checks.note(
                "day_days", day_days, administration_problems.DAYS_SHORTER_THAN_HOURS.format(given=day_days)
            )
        else:
            day_days = checks.count("day_days", day_days, hour_days, MAX_DAYS)
    checks.done()
    with transaction.atomic():
        retention = Retention.objects.get_or_create(pk=1)[0]
        before = audit.audited_fields(retention, *FIELDS)
        retention.sample_days, retention.minute_days = sample_days, minute_days
        retention.hour_days, retention.day_days = hour_days, day_days
        retention.save(update_fields=FIELDS)
        audit.record(
            actor=None,
            via=via,
            now=now,
            verb="set_sample_retention",
            target=retention,
            before=before,
            after=audit.audited_fields(retention, *FIELDS),
        )
    return retention
