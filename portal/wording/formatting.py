"""Format durations, times, windows, GPUs, counts and lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.utils import timezone

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import Priority

Numbers = Mapping[str, Any]


def duration(value: timedelta | float | int | None) -> str:
    """Return a duration as ``40 seconds``, ``26 minutes``, ``3 h 14 min`` or ``2 days 4 h``.

    Return ``an unknown time`` for None.
    """
    if value is None:
        return "an unknown time"
    seconds = int(value.total_seconds() if isinstance(value, timedelta) else value)
    if seconds < 60:
        return with_count(seconds, "second")
    if seconds < 3600:
        return with_count(seconds // 60, "minute")
    if seconds < 48 * 3600:
        minutes = seconds % 3600 // 60
        return f"{seconds // 3600} h" + (f" {minutes:02d} min" if minutes else "")
    hours = seconds % 86_400 // 3600
    return f"{seconds // 86_400} days" + (f" {hours} h" if hours else "")


def date_and_time(value: datetime | float | int | None) -> str:
    """Return ``20 Nov 2026 14:30`` in the current time zone, from a datetime or seconds since the epoch.

    Return ``an unknown time`` for None.
    """
    if value is None:
        return "an unknown time"
    at = value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)
    return f"{timezone.localtime(at):%-d %b %Y %H:%M}"


def local_time_text(at: datetime) -> str:
    """Return a time in the current time zone with the zone's name, such as ``2026-03-02 09:00 CET``.

    In responses of the API, the current time zone is UTC.
    """
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M %Z}"


def window(start: datetime | None, end: datetime | None) -> str:
    """Return a time window as ``Sat 21 Nov 09:00 to 17:00``.

    The day of the end is shown only if it differs from the day of the start: ``Sat 21 Nov 09:00 to Sun 22 Nov
    17:00``. The year of the end is shown only if it differs from the year of the start. Return ``an unknown
    time`` without a start or an end.
    """
    if start is None or end is None:
        return "an unknown time"
    first, last = timezone.localtime(start), timezone.localtime(end)
    if first.date() == last.date():
        return f"{first:%a %-d %b %H:%M} to {last:%H:%M}"
    year = "" if first.year == last.year else f" {last:%Y}"
    return f"{first:%a %-d %b %H:%M} to {last:%a %-d %b}{year} {last:%H:%M}"


def gpus(slots: float | int | None) -> str:
    """Convert slots to a text in GPUs (840 slots each): ``2 GPUs``, ``1 GPU``, ``0.14 GPU``."""
    if slots is None:
        return "an unknown number of GPUs"
    count = round(slots / SLOTS_PER_GPU, 2)
    return f"{count:g} GPU" if count <= 1 and count != 0 else f"{count:g} GPUs"


def time_of_day(at: datetime, now: datetime) -> str:
    """Return ``14:20``, or ``Sat 21 Nov 14:20`` if the day differs from the day of ``now``."""
    local = timezone.localtime(at)
    return (
        f"{local:%H:%M}"
        if local.date() == timezone.localtime(now).date()
        else f"{local:%a} {local.day} {local:%b %H:%M}"
    )


PRIORITY_WORDS = {int(priority): priority.name.lower() for priority in Priority}


def joined_with_and(words: Sequence[str]) -> str:
    """Join words as in ``a``, ``a and b`` or ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def gpu_list(numbers: Sequence[int]) -> str:
    """Return ``GPU 3`` or ``GPUs 0, 1 and 2``."""
    if len(numbers) == 1:
        return f"GPU {numbers[0]}"
    return f"GPUs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def weekdays(days: Sequence[str]) -> str:
    """Return ``every weekday``, ``every day`` or ``every Mon, Wed``. Days are ``mon`` to ``sun``."""
    if len(days) == 7:
        return "every day"
    if list(days) == ["mon", "tue", "wed", "thu", "fri"]:
        return "every weekday"
    return f"every {', '.join(day.capitalize() for day in days)}"


def model_name(model: str) -> str:
    return model.replace("-", " ")


def with_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def cores(milli: int) -> str:
    """Return thousandths of a core as ``1 CPU core`` or ``2.5 CPU cores``."""
    return f"{milli / 1000:,.10g} CPU core{'' if milli == 1000 else 's'}"


def gibibytes(mib: int) -> str:
    """Return ``64 GiB of memory`` with at most one decimal, or ``512 MiB of memory`` below one GiB."""
    return f"{mib} MiB of memory" if mib < 1024 else f"{round(mib / 1024, 1):,.10g} GiB of memory"


def host_size_range(least_cpu: int, most_cpu: int, least_memory: int, most_memory: int) -> str:
    """Return ``64 CPU cores and 512 GiB of memory``; different sizes give a range: ``32 to 64 CPU cores``."""
    cpu = cores(most_cpu) if least_cpu == most_cpu else f"{least_cpu / 1000:,.10g} to {cores(most_cpu)}"
    least, most = round(least_memory / 1024), round(most_memory / 1024)
    return (
        f"{cpu} and {most:,} GiB of memory"
        if least == most
        else f"{cpu} and {least:,} to {most:,} GiB of memory"
    )


def parsed_time(value: Any) -> datetime | None:
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return value if isinstance(value, datetime) else None


def number_text(number: Decimal) -> str:
    """Return a number as text for a message, at most 30 characters long."""
    return f"{number:f}"[:30] if abs(number.adjusted()) < 30 else str(number)[:30]
