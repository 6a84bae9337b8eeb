"""Set how long samples and rollups are kept, and preview what a change does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from portal import locks, policy
from portal.input_checks import InputChecks, checked_reason
from portal.models import User
from portal.services import audit
from portal.wording.problems import administration_problems
from telemetry.models import Retention
from telemetry.rollups.stored_bytes import (
    LEVELS,
    RETENTION_FIELDS,
    StoredLevel,
    present_retention,
    stored_levels,
)

MIN_DAYS = 2
# Open months and pages of up to 62 days need the hours.
MIN_HOUR_DAYS = 100
MAX_DAYS = 3650
UNLIMITED = "unlimited"
DAYS, DAYS_OR_UNLIMITED = "days", f"days, or {UNLIMITED}"

KeptDays = dict[str, int | None]


@dataclass(frozen=True)
class LevelChange:
    """The change of one level. ``days_after`` is None if the level is then kept without limit."""

    level: StoredLevel
    days_after: int | None

    @property
    def expected_after(self) -> int | None:
        """Return the bytes of the whole new retention; None without limit or without data."""
        return self.level.expected_of(self.days_after)

    @property
    def is_changed(self) -> bool:
        return self.days_after != self.level.days

    @property
    def is_shorter(self) -> bool:
        """Return True if older data of the level are deleted after the change."""
        before = self.level.days
        return self.days_after is not None and (before is None or self.days_after < before)


def set_sample_retention(
    *, actor: User | None, now: datetime, why: str = "", via: str = "web", **given: Any
) -> Retention:
    """Set the retention of samples and of rollups in days, and write an audit record.

    ``given`` has fields of RETENTION_FIELDS; other fields keep their values. Hours and days are kept without
    limit if their value is None or UNLIMITED. Minute rollups must be kept at least a day longer than samples:
    when a late sample changes a minute, the hour is merged again from all of its minutes.

    Without an actor, a command on the server calls this function, and no permission is checked. Raises
    Invalid, NotAllowed.
    """
    if actor is not None:
        policy.require(actor, "retention.change")
    why = checked_reason(why)
    with transaction.atomic():
        retention = locks.lock_retention()
        before = audit.audited_fields(retention, *RETENTION_FIELDS)
        for name, days in _checked_days(retention, given).items():
            setattr(retention, name, days)
        retention.save(update_fields=RETENTION_FIELDS)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_sample_retention",
            target=retention,
            before=before,
            after=audit.audited_fields(retention, *RETENTION_FIELDS),
            why=why,
        )
    return retention


def preview_retention(*, actor: User, now: datetime, **given: Any) -> list[LevelChange]:
    """Return the days and bytes of each level before and after a change, without making it.

    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "retention.change")
    days = _checked_days(present_retention(), given)
    fields = {level: field for level, (_, field) in LEVELS.items()}
    return [
        LevelChange(level, days[field] if (field := fields[level.level]) else None)
        for level in stored_levels(now)
    ]


def parsed_days(text: str) -> int | str:
    """Return the number of days in a text that a person typed, or the text if it is not a number."""
    clean = text.strip()
    return int(clean) if clean.isascii() and clean.isdigit() and len(clean) < 9 else clean


def _checked_days(present: Retention, given: Mapping[str, Any]) -> KeptDays:
    """Return the valid days of each field. Fields that are not given keep their values. Raises Invalid."""
    checks = InputChecks()
    if not given:
        allowed = ", ".join(RETENTION_FIELDS)
        message = administration_problems.NOTHING_TO_CHANGE.format(allowed=allowed)
        checks.note("sample_days", None, message)
    wanted = {name: given.get(name, getattr(present, name)) for name in RETENTION_FIELDS}
    samples = checks.count("sample_days", wanted["sample_days"], MIN_DAYS, MAX_DAYS - 1, DAYS)
    minutes = checks.count("minute_days", wanted["minute_days"], MIN_DAYS + 1, MAX_DAYS, DAYS)
    if not checks.problems and minutes <= samples:
        _note_short_minutes(checks, samples, minutes, given)
    hours = _limited_days(checks, "hour_days", wanted["hour_days"], max(MIN_HOUR_DAYS, minutes))
    days = _limited_days(checks, "day_days", wanted["day_days"], hours or MIN_HOUR_DAYS)
    if days is not None and hours is None and "hour_days" not in checks.problems:
        message = administration_problems.DAYS_SHORTER_THAN_HOURS.format(given=days, allowed=UNLIMITED)
        checks.note("day_days", days, message)
    checks.done()
    return {"sample_days": samples, "minute_days": minutes, "hour_days": hours, "day_days": days}


def _limited_days(checks: InputChecks, field: str, value: Any, low: int) -> int | None:
    if value is None or value == UNLIMITED:
        return None
    return checks.count(field, value, low, MAX_DAYS, DAYS_OR_UNLIMITED)


def _note_short_minutes(checks: InputChecks, samples: int, minutes: int, given: Mapping[str, Any]) -> None:
    """Refuse samples that are kept as long as minutes, or longer, at the field that was given."""
    if "sample_days" in given and "minute_days" not in given:
        message = administration_problems.SAMPLES_LONGER_THAN_MINUTES.format(
            given=samples, most=minutes - 1, minute_days=minutes
        )
        return checks.note("sample_days", samples, message)
    message = administration_problems.MINUTES_SHORTER_THAN_SAMPLES.format(
        given=minutes, least=samples + 1, sample_days=samples
    )
    return checks.note("minute_days", minutes, message)
