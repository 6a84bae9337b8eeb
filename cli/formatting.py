"""Durations and times as people type them, and as they are shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def relative_time(text: str | None, now: datetime) -> str:
    """``in 26 min``, ``4 s ago``; a dash for never."""
    if not text:
        return "-"
    seconds = int((now.astimezone(UTC) - datetime.fromisoformat(text)).total_seconds())
    return f"{format_duration(seconds)} ago" if seconds >= 0 else f"in {format_duration(-seconds)}"


def expected_start_text(row: Mapping[str, Any], now: datetime) -> str:
    """``likely in 10 min to 40 min`` where the range is known, else ``in 26 min``; a dash for no expected start."""
    expected, first, last = row["expected_start"], row["likely_from"], row["likely_by"]
    if not expected or not last:
        return relative_time(expected, now)
    ahead = [
        max(0, int((datetime.fromisoformat(at) - now.astimezone(UTC)).total_seconds()))
        for at in (first, last)
    ]
    return f"likely in {format_duration(ahead[0])} to {format_duration(ahead[1])}"


def format_duration(seconds: int) -> str:
    """``40 s``, ``26 min``, ``3 h 14 min``, ``2 d 4 h``."""
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    if seconds < 172_800:
        return f"{seconds // 3600} h" + (f" {seconds % 3600 // 60} min" if seconds % 3600 >= 60 else "")
    return f"{seconds // 86_400} d" + (f" {seconds % 86_400 // 3600} h" if seconds % 86_400 >= 3600 else "")


def format_bytes(size: int | None, complete: bool = True) -> str:
    """Bytes as ``4.2 GB`` (powers of 1000); ``over`` before it where not all could be counted; ``unknown`` for None."""
    if size is None:
        return "unknown"
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    step = 0
    while size >= 1000 ** (step + 1) and step < len(units) - 1:
        step += 1
    text = f"{size / 1000**step:.{0 if step == 0 or size >= 100 * 1000**step else 1}f} {units[step]}"
    return text if complete else f"over {text}"


def format_cores(milli: int) -> str:
    """Thousandths of a core: ``8 cores``."""
    return f"{milli / 1000:,.10g} core{'' if milli == 1000 else 's'}"


def format_gpus(number: float) -> str:
    """GPUs, of slices a part of one: ``3``, ``3.14``."""
    return f"{round(number, 2):,.10g}"


def format_gibibytes(mib: int) -> str:
    """``64 GiB``; less than one in MiB."""
    return f"{mib} MiB" if mib < 1024 else f"{round(mib / 1024, 1):,.10g} GiB"


def format_local_time(text: str | None) -> str:
    """A moment in the local zone: ``2026-03-02 09:00``; a dash for none."""
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M}" if text else "-"


def local_zone_name() -> str:
    """This machine's time zone by its name in the time zone database; UTC where it can't be told."""
    named = os.environ.get("TZ", "").lstrip(":")
    if named:
        return named
    place = os.path.realpath("/etc/localtime")
    _, found, name = place.partition("/zoneinfo/")
    return name if found else "UTC"
