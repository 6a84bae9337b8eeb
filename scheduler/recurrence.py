"""When the occurrences of a recurring reservation are: wall-clock times on some weekdays, from one day to another."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo


@dataclass(frozen=True, slots=True)
class Recurrence:
    """``weekdays``: 0 is Monday. An end that is not after the start is on the next day; an occurrence is at most a day long,
    so that occurrences never overlap. The clock is that of ``time_zone``, also where it is put forward or back."""

    weekdays: frozenset[int]
    starts_at: time
    ends_at: time
    time_zone: str
    first_day: date
    last_day: date


def occurrences(recurrence: Recurrence, after: datetime, most: int) -> list[tuple[datetime, datetime]]:
    """The windows (UTC) that begin at ``after`` or later, in order; at most ``most`` + 1, which says that there are too many."""
    zone = ZoneInfo(recurrence.time_zone)
    overnight = timedelta(days=1 if recurrence.ends_at <= recurrence.starts_at else 0)
    found: list[tuple[datetime, datetime]] = []
    day = recurrence.first_day
    while day <= recurrence.last_day and len(found) <= most:
        if day.weekday() in recurrence.weekdays:
            start = datetime.combine(day, recurrence.starts_at, zone).astimezone(UTC)
            end = datetime.combine(day + overnight, recurrence.ends_at, zone).astimezone(UTC)
            if start >= after and end > start:
                found.append((start, end))
        day += timedelta(days=1)
    return found
