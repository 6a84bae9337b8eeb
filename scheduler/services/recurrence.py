"""Compute the occurrences of a recurring reservation.

A recurrence has a local start and end time, weekdays, and a first and last day.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A rule of recurrence. ``weekdays`` are numbers from 0 (Monday) to 6.

    ``starts_at`` and ``ends_at`` are local times of ``time_zone``. If ``ends_at`` is not after ``starts_at``,
    the occurrence ends on the next day. An occurrence lasts at most a day, so occurrences never overlap.

    If the clocks are set back and a local time occurs twice, the first time counts. If the clocks are set
    forward and skip a local time, it is replaced by the time of the clock change.
    """

    weekdays: frozenset[int]
    starts_at: time
    ends_at: time
    time_zone: str
    first_day: date
    last_day: date


@dataclass(frozen=True, slots=True)
class DstOccurrence:
    """An occurrence that differs from the other occurrences because the clocks change on its day.

    ``window`` is its start and end (UTC), or None if the clocks skip the whole occurrence. ``missing`` has
    the start or end time if the clocks skip it. ``doubled`` has the start or end time if it occurs twice.
    ``longer`` is the additional length compared with other occurrences. It is negative for a shorter one.
    """

    day: date
    window: tuple[datetime, datetime] | None
    missing: tuple[time, ...]
    doubled: tuple[time, ...]
    longer: timedelta


def occurrences(recurrence: Recurrence, after: datetime, max_count: int) -> list[tuple[datetime, datetime]]:
    """Return the windows (start and end, UTC) that start at ``after`` or later, in order.

    The list has at most ``max_count`` + 1 windows. If it is longer than ``max_count``, the caller knows that
    there are too many windows.
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
    """Return the occurrences from ``after`` on that a change of the clocks affects, in order."""
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
    """Return the UTC time of a local time. For a skipped local time, return the time of the clock change."""
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
