"""Format durations, times, sizes and GPU counts for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click


def relative_time(text: str | None, now: datetime) -> str:
    """Return e.g. ``in 26 min`` or ``4 s ago``; ``-`` for None."""
    if not text:
        return "-"
    seconds = int((now.astimezone(UTC) - datetime.fromisoformat(text)).total_seconds())
    return f"{format_duration(seconds)} ago" if seconds >= 0 else f"in {format_duration(-seconds)}"


def expected_start_text(row: Mapping[str, Any], now: datetime) -> str:
    """Return e.g. ``likely in 10 min to 40 min``, or ``in 26 min`` if no range is known.

    Returns ``-`` if no start is expected.
    """
    expected, first, last = row["expected_start"], row["likely_from"], row["likely_by"]
    if not expected or not last:
        return relative_time(expected, now)
    seconds = [
        max(0, int((datetime.fromisoformat(at) - now.astimezone(UTC)).total_seconds()))
        for at in (first, last)
    ]
    return f"likely in {format_duration(seconds[0])} to {format_duration(seconds[1])}"


def format_duration(seconds: int) -> str:
    """Return e.g. ``40 s``, ``26 min``, ``3 h 14 min`` or ``2 d 4 h``."""
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    if seconds < 172_800:
        return f"{seconds // 3600} h" + (f" {seconds % 3600 // 60} min" if seconds % 3600 >= 60 else "")
    return f"{seconds // 86_400} d" + (f" {seconds % 86_400 // 3600} h" if seconds % 86_400 >= 3600 else "")


def gib_or_none(text: str) -> int | None:
    """Return a number of GiB that was given on the command line; none: no number."""
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and int(text)):
        raise click.BadParameter(f"{text[:40]!r} is not a whole number of GiB from 1 to 9999999, or none")
    return int(text)


def format_bytes(size: int | None, complete: bool = True) -> str:
    """Return e.g. ``4.2 GB`` (powers of 1000); ``unknown`` for None.

    If ``complete`` is False, the size is a lower bound, and the result is e.g. ``over 4.2 GB``.
    """
    if size is None:
        return "unknown"
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    step = 0
    while size >= 1000 ** (step + 1) and step < len(units) - 1:
        step += 1
    text = f"{size / 1000**step:.{0 if step == 0 or size >= 100 * 1000**step else 1}f} {units[step]}"
    return text if complete else f"over {text}"


def format_cores(milli: int) -> str:
    """Return e.g. ``8 cores`` for 8000 thousandths of a core."""
    return f"{milli / 1000:,.10g} core{'' if milli == 1000 else 's'}"


def format_gpus(number: float) -> str:
    """Return a number of GPUs, e.g. ``3`` or, with slices, ``3.14``."""
    return f"{round(number, 2):,.10g}"


def format_gibibytes(mib: int) -> str:
    """Return a size in MiB as e.g. ``64 GiB``, or as e.g. ``512 MiB`` if it is below 1 GiB."""
    return f"{mib} MiB" if mib < 1024 else f"{round(mib / 1024, 1):,.10g} GiB"


def format_local_time(text: str | None) -> str:
    """Return e.g. ``2026-03-02 09:00`` in the local time zone; ``-`` for None."""
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M}" if text else "-"
