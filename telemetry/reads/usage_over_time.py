"""Return held and busy GPUs as a time series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.reads.usage_by_group import check_dimension
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_rows import HeldInterval, UsageRows


@dataclass(frozen=True)
class UsageSeries:
    """The mean held and busy GPUs of one group, per time step.

    ``busy`` is weighted by utilisation. A value of ``busy`` is None if nothing was measured in the step.
    """

    key: Any
    name: str
    starts: list[datetime]
    held: list[float]
    busy: list[float | None]


def usage_over_time(
    filters: UsageFilters,
    *,
    step: timedelta | None = None,
    dimension: str | None = None,
    reads: UsageRows | None = None,
) -> list[UsageSeries]:
    """Return the mean held and busy GPUs per ``step``: one series for each group of ``dimension``.

    Without a dimension, one series contains all holds. The default step depends on the length of the period.
    Raises ValueError if ``step`` is not a whole number of hours or the dimension is unknown.
    """
    step = step or _default_step(filters)
    hours = step / timedelta(hours=1)
    if hours < 1 or hours != int(hours):
        raise ValueError(f"step: {step} is not a whole number of hours")
    if dimension is not None:
        check_dimension(dimension)
    reads = reads or UsageRows(filters)
    edges = step_edges(filters, step)
    starts = [datetime.fromtimestamp(start, filters.start.tzinfo) for start in edges[:-1]]
    busy = _busy_over_time(reads, edges, dimension)
    length = SLOTS_PER_GPU * step.total_seconds()
    series = []
    for group, name, held in held_over_time(reads, edges, dimension):
        used = busy.get(group, {})
        known = [used[index] / length if index in used else None for index in range(len(starts))]
        series.append(UsageSeries(key=group, name=name, starts=starts, held=held, busy=known))
    return series


def held_over_time(
    reads: UsageRows, edges: Sequence[float], dimension: str | None
) -> list[tuple[Any, str, list[float]]]:
    """Return (group, name, mean held GPUs per step) in order of name.

    ``edges`` separate the steps, in seconds since the epoch. Without a dimension, the result is one group
    that contains all holds.
    """
    holds: dict[Any, list[HeldInterval]] = defaultdict(list)
    for hold in reads.holds(dimension or "pool"):
        holds[hold.group if dimension else None].append(hold)
    length = SLOTS_PER_GPU * (edges[1] - edges[0])
    named = [(group, some[0].name if dimension else "", some) for group, some in holds.items()]
    return [
        (group, name, [value / length for value in _slot_seconds_per_step(some, edges)])
        for group, name, some in sorted(named, key=lambda each: (each[1], str(each[0])))
    ]


def _default_step(filters: UsageFilters) -> timedelta:
    """Return a step that gives at most about 400 points."""
    for hours in (1, 2, 3, 6, 12, 24):
        if filters.hours / hours <= 400:
            return timedelta(hours=hours)
    return timedelta(days=max(1, int(filters.hours / 24 / 400) + 1))


def step_edges(filters: UsageFilters, step: timedelta) -> list[float]:
    """Return the edges of the steps that cover the period, in seconds since the epoch.

    Every edge is a multiple of the step, so the first step may begin before the period.
    """
    length = step.total_seconds()
    low, high = filters.start.timestamp(), filters.end.timestamp()
    first, last = int(low // length), int(-(-high // length))
    return [number * length for number in range(first, last + 1)]


def _slot_seconds_per_step(holds: Sequence[HeldInterval], edges: Sequence[float]) -> list[float]:
    """Return the held slot-seconds between each two adjacent edges."""
    starts = np.array([hold.start for hold in holds])
    ends = np.array([hold.end for hold in holds])
    slots = np.array([hold.slots for hold in holds], dtype=float)
    moments = np.concatenate([starts, ends])
    changes = np.concatenate([slots, -slots])
    order = np.argsort(moments, kind="stable")
    moments, level = moments[order], np.cumsum(changes[order])
    integral = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(moments))])
    at_edges = np.interp(np.asarray(edges), moments, integral, left=0.0, right=float(integral[-1]))
    return [float(value) for value in np.diff(at_edges)]


def _busy_over_time(
    reads: UsageRows, edges: Sequence[float], dimension: str | None
) -> dict[Any, dict[int, float]]:
    """Return utilisation-weighted slot-seconds by group and step number."""
    first, length = edges[0], edges[1] - edges[0]
    found: dict[Any, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for hour in reads.hours(dimension) if dimension else reads.hours_any_dimension():
        if hour.used is not None:
            found[hour.group if dimension else None][int((hour.start - first) // length)] += hour.used
    return found
