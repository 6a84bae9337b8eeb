"""Compute the occurrences of a recurring reservation: local times on some weekdays within a range of days."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A rule of recurrence. ``weekdays``: 0 is Monday.

    An end that is not after the start is on the next day. An occurrence lasts at most a day, so occurrences
    never overlap. Times are local times of ``time_zone``. At changes of daylight saving time, the first of
    two equal times counts, and a skipped time is replaced by the time of the change.
    """

    weekdays: frozenset[int]
    starts_at: time
    ends_at: time
    time_zone: str
    first_day: date
    last_day: date


@dataclass(frozen=True, slots=True)
class DstOccurrence:
    """An occurrence that differs from the others because the clocks change on its day.

    ``window`` (UTC) is None if none of its hours exist. ``missing`` and ``doubled`` hold its start or end if
    the clocks skip or repeat that time. ``longer`` is the additional length compared with the others.
    """

    day: date
    window: tuple[datetime, datetime] | None
    missing: tuple[time, ...]
    doubled: tuple[time, ...]
    longer: timedelta


def occurrences(recurrence: Recurrence, after: datetime, max_count: int) -> list[tuple[datetime, datetime]]:
    """Return the windows (UTC) that start at ``after`` or later, in order.

    Returns at most ``max_count`` + 1 windows, so that the caller can detect that there are too many.
    """
    windows: list[tuple[datetime, datetime]] = []
    for _, first, last in _days(recurrence):
        start, end = _utc_time(first), _utc_time(last)
        if start >= after and end > start:
            windows.append((start, end))
            if len(windows) > max_count:
                break
    return windows


def dst_occurrences(recurrence: Recurrence, after: datetime) -> list[DstOccurrence]:
    """Return the occurrences from ``after`` on that differ from the others, in order."""
    differing = []
    for day, first, last in _days(recurrence):
        start, end = _utc_time(first), _utc_time(last)
        missing = tuple(at.time() for at in (first, last) if _is_skipped_time(at))
        doubled = tuple(at.time() for at in (first, last) if _is_repeated_time(at))
        longer = (end - start) - (last.replace(tzinfo=None) - first.replace(tzinfo=None))
        if start >= after and (missing or doubled or longer):
            window = (start, end) if end > start else None
            differing.append(DstOccurrence(day, window, missing, doubled, longer))
    return differing


def _days(recurrence: Recurrence) -> Iterator[tuple[date, datetime, datetime]]:
    """Yield the day, the local start and the local end of each occurrence."""
    zone = ZoneInfo(recurrence.time_zone)
    overnight = timedelta(days=1 if recurrence.ends_at <= recurrence.starts_at else 0)
    day = recurrence.first_day
    while day <= recurrence.last_day:
        if day.weekday() in recurrence.weekdays:
            last = datetime.combine(day + overnight, recurrence.ends_at, zone)
            yield day, datetime.combine(day, recurrence.starts_at, zone), last
        day += timedelta(days=1)


def _utc_time(at: datetime) -> datetime:
    """Return the UTC time of a local time; for a skipped local time, the time of the clock change."""
    before, after = at.replace(fold=0).astimezone(UTC), at.replace(fold=1).astimezone(UTC)
    if not _is_skipped_time(at):
        return before
    old_offset = after.astimezone(at.tzinfo).utcoffset()
    while before - after > MINUTE:
        middle = after + (before - after) // MINUTE // 2 * MINUTE
        if middle.astimezone(at.tzinfo).utcoffset() == old_offset:
            after = middle
        else:
            before = middle
    return before


def _is_skipped_time(at: datetime) -> bool:
    """Return True if the clocks skip this local time."""
    return at.replace(fold=0).astimezone(UTC) > at.replace(fold=1).astimezone(UTC)


def _is_repeated_time(at: datetime) -> bool:
    """Return True if this local time occurs twice."""
    return at.replace(fold=0).astimezone(UTC) < at.replace(fold=1).astimezone(UTC)
