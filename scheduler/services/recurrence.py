"""When the occurrences of a recurring reservation are: wall-clock times on some weekdays, from one day to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """``weekdays``: 0 is Monday. An end that is not after the start is on the next day; an occurrence is at most a day long,
    so that occurrences never overlap. The clock is that of ``time_zone``, also where it is put forward or back: of a time
    that comes twice the first counts, and in the place of one that does not exist the moment at which the clock was put
    forward."""

    weekdays: frozenset[int]
    starts_at: time
    ends_at: time
    time_zone: str
    first_day: date
    last_day: date


@dataclass(frozen=True, slots=True)
class DstOccurrence:
    """An occurrence that is not as the others, since the clock is put forward or back on its day. ``window`` (UTC) is None
    where none of its hours exist; ``missing`` and ``doubled`` are those of its two times that don't exist or come twice;
    ``longer`` is by how much more time it has than the others."""

    day: date
    window: tuple[datetime, datetime] | None
    missing: tuple[time, ...]
    doubled: tuple[time, ...]
    longer: timedelta


def occurrences(recurrence: Recurrence, after: datetime, most: int) -> list[tuple[datetime, datetime]]:
    """The windows (UTC) that begin at ``after`` or later, in order; at most ``most`` + 1, which says that there are too many."""
    found: list[tuple[datetime, datetime]] = []
    for _, first, last in _days(recurrence):
        start, end = _moment(first), _moment(last)
        if start >= after and end > start:
            found.append((start, end))
            if len(found) > most:
                break
    return found


def dst_occurrences(recurrence: Recurrence, after: datetime) -> list[DstOccurrence]:
    """Those that are to begin at ``after`` or later and are not as the others, in order."""
    found = []
    for day, first, last in _days(recurrence):
        start, end = _moment(first), _moment(last)
        missing = tuple(at.time() for at in (first, last) if _is_skipped_time(at))
        doubled = tuple(at.time() for at in (first, last) if _is_repeated_time(at))
        longer = (end - start) - (last.replace(tzinfo=None) - first.replace(tzinfo=None))
        if start >= after and (missing or doubled or longer):
            found.append(DstOccurrence(day, (start, end) if end > start else None, missing, doubled, longer))
    return found


def _days(recurrence: Recurrence) -> Iterator[tuple[date, datetime, datetime]]:
    """Every day on which it is, with start and end by the clock."""
    zone = ZoneInfo(recurrence.time_zone)
    overnight = timedelta(days=1 if recurrence.ends_at <= recurrence.starts_at else 0)
    day = recurrence.first_day
    while day <= recurrence.last_day:
        if day.weekday() in recurrence.weekdays:
            last = datetime.combine(day + overnight, recurrence.ends_at, zone)
            yield day, datetime.combine(day, recurrence.starts_at, zone), last
        day += timedelta(days=1)


def _moment(at: datetime) -> datetime:
    """When the clock shows this, or was put over it."""
    before, after = at.replace(fold=0).astimezone(UTC), at.replace(fold=1).astimezone(UTC)
    if not _is_skipped_time(at):
        return before
    known = after.astimezone(at.tzinfo).utcoffset()  # before the clock is put forward
    while before - after > MINUTE:
        middle = after + (before - after) // MINUTE // 2 * MINUTE
        if middle.astimezone(at.tzinfo).utcoffset() == known:
            after = middle
        else:
            before = middle
    return before


def _is_skipped_time(at: datetime) -> bool:
    """Is the clock put forward over it?"""
    return at.replace(fold=0).astimezone(UTC) > at.replace(fold=1).astimezone(UTC)


def _is_repeated_time(at: datetime) -> bool:
    """Does the clock, put back, show it twice?"""
    return at.replace(fold=0).astimezone(UTC) < at.replace(fold=1).astimezone(UTC)
