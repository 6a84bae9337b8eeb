"""Compute the measured use of a charge line from the rollups of its allocation.

The use in an hour is read from the rollup of the hour. If several lines of one allocation share an hour, the
rollups of the hour's minutes show which part belongs to which line. Rollups of minutes are deleted after some
time. If the remaining minutes do not cover the hour, the use of the hour is divided in proportion to the time
of each line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from telemetry.core.rollup import HOUR, would_lose_coverage

MINUTE = 60
# Charge lines begin and end at whole seconds. Allocations begin and end at any time.
WHOLE_HOLD_TOLERANCE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class HeldUsage:
    """The usage of one allocation in one bucket, in seconds.

    ``used`` is the covered time weighted by utilisation; None if utilisation was not measured.
    """

    held: float
    covered: float
    used: float | None


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """The used and the covered seconds of a line. ``used`` is None if utilisation was not measured."""

    used: float | None
    covered: float


NOT_MEASURED = MeasuredUse(None, 0.0)
UsageByBucket = Mapping[int, HeldUsage]  # by start of the bucket, in seconds since the epoch


def measured_use(start: int, end: int, hours: UsageByBucket, minutes: UsageByBucket) -> MeasuredUse:
    """Return the measured use in ``[start, end)`` (seconds since the epoch) of one allocation.

    ``minutes`` are needed only for hours for which ``needs_minutes`` returns True. The result never covers
    more than the time between ``start`` and ``end``.
    """
    parts = [_use_in_hour(hour, low, high, hours, minutes) for hour, low, high in hour_parts(start, end)]
    known = [part.used for part in parts if part.used is not None]
    return MeasuredUse(sum(known) if known else None, sum((part.covered for part in parts), 0.0))


def hour_parts(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (hour, low, high) for each hour that overlaps ``[start, end)``, with the overlap."""
    for hour in range(start - start % HOUR, end, HOUR):
        yield hour, max(start, hour), min(end, hour + HOUR)


def needs_minutes(low: int, high: int, hour: HeldUsage | None) -> bool:
    """Return True if the hour's rollup alone does not tell the use in ``[low, high)``.

    This is the case if the allocation also held its unit outside of this interval, or if the hour has no
    rollup yet.
    """
    return hour is None or hour.held > high - low + WHOLE_HOLD_TOLERANCE_SECONDS


def _use_in_hour(
    start: int, low: int, high: int, hours: UsageByBucket, minutes: UsageByBucket
) -> MeasuredUse:
    hour = hours.get(start)
    if not needs_minutes(low, high, hour) and hour is not None:
        return _part_of(hour, high - low)
    inside = {at: minutes[at] for at in range(start, start + HOUR, MINUTE) if at in minutes}
    if hour is not None and would_lose_coverage(hour.covered, sum(use.covered for use in inside.values())):
        return _part_of(hour, high - low)
    parts = [
        _part_of(use, min(at + MINUTE, high) - max(at, low))
        for at, use in inside.items()
        if max(at, low) < min(at + MINUTE, high)
    ]
    known = [part.used for part in parts if part.used is not None]
    return MeasuredUse(sum(known) if known else None, sum((part.covered for part in parts), 0.0))


def _part_of(use: HeldUsage, seconds: int) -> MeasuredUse:
    """Return the part of a bucket's use that belongs to ``seconds`` of its held time."""
    share = min(1.0, seconds / use.held) if use.held > 0 else 0.0
    covered = min(use.covered * share, float(seconds))
    return MeasuredUse(None if use.used is None else min(use.used * share, covered), covered)
