"""Durations and times as people type them, and as they are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click

DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
DURATION_PART = re.compile(r"(\d{1,9})([smhd])")
DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
MIB_PER_UNIT = {"m": 1, "g": 1024, "t": 1024 * 1024}
MEMORY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([mgt])?(?:i?b)?")
CAPABILITY = re.compile(r"([0-9]{1,2})(?:\.([0-9]))?")


class DurationType(click.ParamType[int]):
    """``90m``, ``8h``, ``1d12h`` or seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Seconds."""
        text = str(value).strip().lower()
        if text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
        parts = DURATION_PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            self.fail(f"{value!r}; allowed: such as 90m, 8h, 1d12h or a number of seconds", param, ctx)
        return sum(int(number) * DURATION_UNITS[unit] for number, unit in parts)


class CoresType(click.ParamType[int]):
    """``8`` or ``2.5`` CPU cores."""

    name = "cores"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Thousandths of a core."""
        text = str(value).strip()
        milli = round(float(text) * 1000) if DECIMAL.fullmatch(text) else 0
        if milli < 1:
            self.fail(f"{value!r}; allowed: more than 0, such as 8 or 2.5", param, ctx)
        return milli


class MemoryType(click.ParamType[int]):
    """``64``, ``64G`` or ``64GiB``, ``512M``, ``1.5T``: GiB unless it says otherwise; powers of 1024."""

    name = "memory"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """MiB."""
        matched = MEMORY.fullmatch(str(value).strip().lower())
        mib = round(float(matched[1]) * MIB_PER_UNIT[matched[2] or "g"]) if matched else 0
        if mib < 1:
            self.fail(f"{value!r}; allowed: more than 0, such as 64 (GiB), 64G or 512M", param, ctx)
        return mib


class ComputeCapabilityType(click.ParamType[int]):
    """``8.0``, ``9``."""

    name = "capability"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """In tenths: 80 is 8.0."""
        matched = CAPABILITY.fullmatch(str(value).strip())
        if matched is None:
            self.fail(f"{value!r}; allowed: such as 8.0 (A100), 8.9 (L40S) or 9.0 (H100)", param, ctx)
        return int(matched[1]) * 10 + int(matched[2] or 0)


class TimestampType(click.ParamType[str]):
    """``2026-03-02T09:00``, ``2026-03-02 09:00``, ``today 18:00``, ``tomorrow 09:00``, ``now``: local unless it names a zone."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """ISO 8601 with its zone."""
        try:
            return parse_timestamp(str(value), datetime.now().astimezone()).isoformat()
        except (ValueError, OverflowError):
            self.fail(f"{value!r}; allowed: such as 2026-03-02T09:00, 'tomorrow 09:00' or now", param, ctx)


def parse_timestamp(text: str, now: datetime) -> datetime:
    """A moment with a zone; ``now`` is aware and local. Raises ValueError."""
    word, _, rest = text.strip().lower().partition(" ")
    if word == "now" and not rest:
        return now.replace(microsecond=0)
    if word in ("today", "tomorrow"):
        day = now.date() + timedelta(days=word == "tomorrow")
        clock = datetime.strptime(rest or "00:00", "%H:%M").time()  # noqa: DTZ007  the zone is added below
        return datetime.combine(day, clock).astimezone()
    found = datetime.fromisoformat(text.strip())
    return found if found.tzinfo else found.astimezone()


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
