"""Define the click types that parse durations, cores, memory, compute capabilities and times."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import click

DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


DURATION_PART = re.compile(r"(\d{1,9})([smhd])")


DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


MIB_PER_UNIT = {"m": 1, "g": 1024, "t": 1024 * 1024}


MEMORY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([mgt])?(?:i?b)?")


CAPABILITY = re.compile(r"([0-9]{1,2})(?:\.([0-9]))?")


class DurationType(click.ParamType[int]):
    """A duration: ``90m``, ``8h``, ``1d12h`` or seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return seconds."""
        text = str(value).strip().lower()
        if text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
        parts = DURATION_PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            self.fail(f"{value!r}; allowed: such as 90m, 8h, 1d12h or a number of seconds", param, ctx)
        return sum(int(number) * DURATION_UNITS[unit] for number, unit in parts)


class CoresType(click.ParamType[int]):
    """CPU cores: ``8`` or ``2.5``."""

    name = "cores"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return thousandths of a core."""
        text = str(value).strip()
        milli = round(float(text) * 1000) if DECIMAL.fullmatch(text) else 0
        if milli < 1:
            self.fail(f"{value!r}; allowed: more than 0, such as 8 or 2.5", param, ctx)
        return milli


class MemoryType(click.ParamType[int]):
    """Memory: ``64``, ``64G``, ``64GiB``, ``512M`` or ``1.5T``.

    A number without a unit is in GiB. Units are powers of 1024.
    """

    name = "memory"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return MiB."""
        matched = MEMORY.fullmatch(str(value).strip().lower())
        mib = round(float(matched[1]) * MIB_PER_UNIT[matched[2] or "g"]) if matched else 0
        if mib < 1:
            self.fail(f"{value!r}; allowed: more than 0, such as 64 (GiB), 64G or 512M", param, ctx)
        return mib


class ComputeCapabilityType(click.ParamType[int]):
    """A compute capability: ``8.0`` or ``9``."""

    name = "capability"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return tenths, for example 80 for compute capability 8.0."""
        matched = CAPABILITY.fullmatch(str(value).strip())
        if matched is None:
            self.fail(f"{value!r}; allowed: such as 8.0 (A100), 8.9 (L40S) or 9.0 (H100)", param, ctx)
        return int(matched[1]) * 10 + int(matched[2] or 0)


class TimestampType(click.ParamType[str]):
    """A time: ``2026-03-02T09:00``, ``2026-03-02 09:00``, ``today 18:00``, ``tomorrow 09:00`` or ``now``.

    A time without a zone is a local time.
    """

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the time in ISO 8601 with its zone."""
        try:
            return parse_timestamp(str(value), datetime.now().astimezone()).isoformat()
        except (ValueError, OverflowError):
            self.fail(f"{value!r}; allowed: such as 2026-03-02T09:00, 'tomorrow 09:00' or now", param, ctx)


def parse_timestamp(text: str, now: datetime) -> datetime:
    """Return the time with a zone. ``now`` must be aware and local. Raises ValueError."""
    word, _, rest = text.strip().lower().partition(" ")
    if word == "now" and not rest:
        return now.replace(microsecond=0)
    if word in ("today", "tomorrow"):
        day = now.date() + timedelta(days=word == "tomorrow")
        clock = datetime.strptime(rest or "00:00", "%H:%M").time()  # noqa: DTZ007  the zone is added below
        return datetime.combine(day, clock).astimezone()
    found = datetime.fromisoformat(text.strip())
    return found if found.tzinfo else found.astimezone()
