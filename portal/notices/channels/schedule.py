"""Decide when a message is due: at once, after quiet hours, with the next digest, or after a failure."""

from __future__ import annotations

from datetime import datetime, time, timedelta, tzinfo

DAILY_DIGEST_AT = time(8)
FIRST_RETRY = timedelta(seconds=10)
LONGEST_RETRY = timedelta(hours=1)
GIVE_UP_AFTER = timedelta(days=3)


def due_time(
    now: datetime, zone: tzinfo, digest: str, quiet_from: time | None, quiet_until: time | None
) -> datetime:
    """Return when a message that is written now is due. ``digest`` is none, hourly or daily.

    Hours of the day count in ``zone``. A digest that would be due in quiet hours is due at their end.
    """
    due = now
    if digest == "hourly":
        due = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    elif digest == "daily":
        due = _next_time_of_day(now, zone, DAILY_DIGEST_AT)
    if (
        quiet_from is None
        or quiet_until is None
        or not _is_quiet(due.astimezone(zone), quiet_from, quiet_until)
    ):
        return due
    return _next_time_of_day(due, zone, quiet_until)


def retry_time(now: datetime, attempts: int) -> datetime:
    """Return when a message is tried again after failed attempts: after 10 s, 20 s, up to an hour."""
    doublings = min(max(attempts, 1) - 1, 20)
    return now + min(FIRST_RETRY * (1 << doublings), LONGEST_RETRY)


def _is_quiet(local: datetime, begin: time, end: time) -> bool:
    """Return True in the hours from ``begin`` to ``end``. They may contain midnight."""
    clock = local.time()
    return begin <= clock < end if begin < end else clock >= begin or clock < end


def _next_time_of_day(after: datetime, zone: tzinfo, at: time) -> datetime:
    """Return the first moment after ``after`` at which the clock of the zone shows ``at``."""
    local = after.astimezone(zone)
    found = datetime.combine(local.date(), at, zone)
    if found <= after:
        found = datetime.combine(local.date() + timedelta(days=1), at, zone)
    return found.astimezone(after.tzinfo)
