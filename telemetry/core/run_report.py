"""Reduce the use of a run's units to a fixed number of points, for the report of the run and its charts.

A run holds units for minutes or for weeks. Its charts have at most MAX_POINTS points of equal length. A value
is None if it was not measured, or if the run did not hold the unit in that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from telemetry.core.rollup import DAY, HOUR, UsageSums, merge_usage

MAX_POINTS = 240
POINT_LENGTHS = (60, 120, 300, 600, 900, 1800, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY)
# A point counts as busy from this share of busy time on, so that one reading of a long point does not count.
BUSY_POINT_SHARE = 0.1
# Series of readings that are read once a minute, and not rolled up.
MINUTE_SERIES = ("dram_active", "pcie_mib_s", "nvlink_mib_s")
SERIES = (
    *("busy", "empty", "utilisation", "sm_active", "tensor_active", "memory_mib", "power_w"),
    *MINUTE_SERIES,
)
# Series of all runs of a workload together, from the control groups of its hosts.
HOST_SERIES = ("cpu_cores", "host_memory_mib", "io_mib_s", "network_mib_s")

Series = dict[str, list[float | None]]
BucketUse = tuple[int, UsageSums]  # start of the bucket in seconds since the epoch, and its sums


@dataclass(frozen=True)
class UnitReport:
    """The use of one unit by a run.

    ``series`` has one list for each name in SERIES. ``memory_peak_at`` is the start of the bucket with the
    peak of the memory, in seconds since the epoch.
    """

    unit: int
    host: str
    gpu: int
    model: str
    profile: str
    memory_mib: int
    simulated: bool
    sums: UsageSums
    memory_peak_at: int | None = None
    series: Series = field(default_factory=dict)

    @property
    def activity_seconds(self) -> float | None:
        """Return the seconds of which it is known whether the unit was busy, idle or empty."""
        parts = (self.sums.busy_seconds, self.sums.idle_seconds, self.sums.empty_seconds)
        return None if None in parts else sum(part for part in parts if part is not None)

    @property
    def busy(self) -> float | None:
        """Return the busy share of the known time, from 0 to 1."""
        return share(self.sums.busy_seconds, self.activity_seconds)

    @property
    def utilisation(self) -> float | None:
        return share(self.sums.utilisation_seconds, self.sums.utilisation_known_seconds)

    @property
    def sm_active(self) -> float | None:
        return share(self.sums.sm_active_seconds, self.sums.sm_known_seconds)

    @property
    def tensor_active(self) -> float | None:
        return share(self.sums.tensor_active_seconds, self.sums.sm_known_seconds)

    @property
    def coverage(self) -> float | None:
        """Return the part of the held time that samples cover."""
        return share(self.sums.covered_seconds, self.sums.held_seconds)

    @property
    def memory_peak_mib(self) -> int | None:
        return self.sums.memory_used_max_mib

    @property
    def energy_kwh(self) -> float | None:
        """Return the measured energy in kWh."""
        return None if self.sums.energy_mj is None else self.sums.energy_mj / 3.6e9

    @property
    def was_busy(self) -> bool | None:
        """Return True if the unit was busy in at least one point; None if its activity is unknown."""
        known = [value for value in self.series.get("busy", ()) if value is not None]
        return any(value >= BUSY_POINT_SHARE * 100 for value in known) if known else None


def share(part: float | None, whole: float | None) -> float | None:
    """Return ``part / whole``, at most 1; None if one of them is unknown or the whole is 0."""
    return None if part is None or not whole else min(1.0, part / whole)


def point_length(seconds: float) -> int:
    """Return the length of a point, in seconds, for a chart of ``seconds``.

    The chart has at most MAX_POINTS points.
    """
    for length in POINT_LENGTHS:
        if seconds <= length * MAX_POINTS:
            return length
    return math.ceil(seconds / DAY / MAX_POINTS) * DAY


def point_starts(start: float, end: float, length: int) -> list[int]:
    """Return the starts of the points that cover ``[start, end)``, in seconds since the epoch."""
    first = math.floor(start / length) * length
    return list(range(first, max(first + 1, math.ceil(end)), length))


def total_use(hours: Iterable[BucketUse], minutes: Iterable[BucketUse]) -> UsageSums:
    """Return the use of a unit over the whole run.

    ``hours`` may lack the last hours, because they are not rolled up yet. For these hours, ``minutes`` are
    summed. An hour may have two entries, because two attempts can hold the unit in it.
    """
    known = list(hours)
    starts = {start for start, _ in known}
    rest = [use for start, use in minutes if start - start % HOUR not in starts]
    return merge_usage([*(use for _, use in known), *rest])


def use_series(buckets: Iterable[BucketUse], points: Sequence[int], length: int) -> Series:
    """Return the series of one unit, one value for each point. Percentages are from 0 to 100."""
    parts: dict[int, list[UsageSums]] = {}
    for start, use in buckets:
        parts.setdefault((start - points[0]) // length, []).append(use)
    values = [_point_values(merge_usage(parts[at])) if at in parts else {} for at in range(len(points))]
    return {name: [each.get(name) for each in values] for name in SERIES}


def memory_peak_time(buckets: Iterable[BucketUse]) -> int | None:
    """Return the start of the first bucket with the highest memory; None if the memory was not measured."""
    known = [
        (use.memory_used_max_mib, -start) for start, use in buckets if use.memory_used_max_mib is not None
    ]
    return -max(known)[1] if known else None


def busy_at_once(units: Sequence[UnitReport]) -> int | None:
    """Return the highest number of units that were busy in the same point; None if no activity is known."""
    counts: dict[int, int] = {}
    for unit in units:
        for at, value in enumerate(unit.series.get("busy", ())):
            if value is not None:
                counts[at] = counts.get(at, 0) + (value >= BUSY_POINT_SHARE * 100)
    return max(counts.values()) if counts else None


# The time by which each sum is divided for its mean.
WHOLE_OF = {
    "covered_seconds": "held_seconds",
    "utilisation_seconds": "utilisation_known_seconds",
    "sm_active_seconds": "sm_known_seconds",
    "tensor_active_seconds": "sm_known_seconds",
}


def mean_of(units: Iterable[UnitReport], part: str) -> float | None:
    """Return the mean of a sum of WHOLE_OF over the units that measured it."""
    whole = WHOLE_OF[part]
    rows = [(getattr(unit.sums, part), getattr(unit.sums, whole)) for unit in units]
    known = [(value, seconds) for value, seconds in rows if value is not None and seconds]
    return share(sum(value for value, _ in known), sum(seconds for _, seconds in known)) if known else None


def _point_values(use: UsageSums) -> Mapping[str, float | None]:
    known = [part for part in (use.busy_seconds, use.idle_seconds, use.empty_seconds) if part is not None]
    covered, activity = use.covered_seconds, sum(known)
    energy = None if use.energy_faults else use.energy_mj
    return {
        "busy": _percent(use.busy_seconds, activity),
        "empty": _percent(use.empty_seconds, activity),
        "utilisation": _percent(use.utilisation_seconds, use.utilisation_known_seconds),
        "sm_active": _percent(use.sm_active_seconds, use.sm_known_seconds),
        "tensor_active": _percent(use.tensor_active_seconds, use.sm_known_seconds),
        "memory_mib": use.memory_used_max_mib,
        "power_w": round(energy / 1000 / covered, 1) if energy is not None and covered else None,
    }


def _percent(part: float | None, whole: float) -> float | None:
    value = share(part, whole)
    return None if value is None else round(value * 100, 1)
