"""Return held and busy GPUs as a time series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import numpy as np

from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.core.rollup import DAY
from telemetry.reads.usage_by_group import check_dimension
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_rows import Floats, HeldInterval, HourlyUsage, UsageRows


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
    zone: tzinfo = UTC,
) -> list[UsageSeries]:
    """Return the mean held and busy GPUs per ``step``: one series for each group of ``dimension``.

    Without a dimension, one series contains all holds. The default step depends on the length of the period.
    Steps of whole days begin at midnight in ``zone``. Raises ValueError if ``step`` is not a whole number of
    hours or the dimension is unknown.
    """
    step = step or default_step(filters)
    hours = step / timedelta(hours=1)
    if hours < 1 or hours != int(hours):
        raise ValueError(f"step: {step} is not a whole number of hours")
    if dimension is not None:
        check_dimension(dimension)
    reads = reads or UsageRows(filters)
    edges = step_edges(filters, step, zone)
    starts = [datetime.fromtimestamp(start, filters.start.tzinfo) for start in edges[:-1]]
    busy = _busy_over_time(reads, edges, dimension)
    lengths = _slot_seconds_of_one_gpu(edges)
    series = []
    for group, name, held in held_over_time(reads, edges, dimension):
        used = busy.get(group, {})
        known = [used[index] / length if index in used else None for index, length in enumerate(lengths)]
        series.append(UsageSeries(key=group, name=name, starts=starts, held=held, busy=known))
    return series


def held_over_time(
    reads: UsageRows, edges: Sequence[float], dimension: str | None
) -> list[tuple[Any, str, list[float]]]:
    """Return (group, name, mean held GPUs per step) in order of name.

    ``edges`` separate the steps, in seconds since the epoch. Without a dimension, the result is one group
    that contains all holds. Long periods are read from cubes, and every other one from allocations.
    """
    if reads.filters.is_long:
        return _held_from_cubes(reads, edges, dimension)
    holds: dict[Any, list[HeldInterval]] = defaultdict(list)
    for hold in reads.holds(dimension) if dimension else reads.holds_any_dimension():
        holds[hold.group if dimension else None].append(hold)
    lengths = _slot_seconds_of_one_gpu(edges)
    named = [(group, some[0].name if dimension else "", some) for group, some in holds.items()]
    return [
        (group, name, (slot_seconds_per_step(some, edges) / lengths).tolist())
        for group, name, some in sorted(named, key=lambda each: (each[1], str(each[0])))
    ]


def _held_from_cubes(
    reads: UsageRows, edges: Sequence[float], dimension: str | None
) -> list[tuple[Any, str, list[float]]]:
    """Return the result of ``held_over_time`` from the held time of rollups. An hour counts at its start."""
    lengths = _slot_seconds_of_one_gpu(edges)
    hours = _hours_of_steps(reads, edges, dimension)
    held = _sums_of_steps(hours, hours.held, edges, dimension)
    sums = reads.sums(dimension) if dimension else {}
    named = [(group, sums[group]["name"] if group in sums else "", found) for group, found in held.items()]
    return [
        (group, name or "", (found / lengths).tolist())
        for group, name, found in sorted(named, key=lambda each: (each[1] or "", str(each[0])))
    ]


def default_step(filters: UsageFilters) -> timedelta:
    """Return a step that gives at most about 400 points."""
    for hours in (1, 2, 3, 6, 12, 24):
        if filters.hours / hours <= 400:
            return timedelta(hours=hours)
    return timedelta(days=max(1, int(filters.hours / 24 / 400) + 1))


def step_edges(filters: UsageFilters, step: timedelta, zone: tzinfo = UTC) -> list[float]:
    """Return the edges of the steps that cover the period, in seconds since the epoch.

    The first step may begin before the period. The edges of steps of whole days are at midnight in ``zone``,
    so a day has 23 or 25 hours at a change of the clock. Other edges are a multiple of the step away from
    midnight of the first day.
    """
    first_day = filters.start.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    if step % timedelta(days=1) == timedelta(0):
        edges = [first_day]
        while edges[-1] < filters.end:
            # The sum is a local time, so a step of a day may have 23 or 25 hours.
            edges.append(edges[-1] + step)
        return [edge.timestamp() for edge in edges]
    length, origin = step.total_seconds(), first_day.timestamp()
    first = int((filters.start.timestamp() - origin) // length)
    last = int(-(-(filters.end.timestamp() - origin) // length))
    return [origin + number * length for number in range(first, last + 1)]


def _slot_seconds_of_one_gpu(edges: Sequence[float]) -> Floats:
    """Return the slot-seconds of one GPU in each step."""
    return SLOTS_PER_GPU * np.diff(np.asarray(edges, dtype=float))


def slot_seconds_per_step(holds: Sequence[HeldInterval], edges: Sequence[float]) -> Floats:
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
    return np.diff(at_edges)


def _busy_over_time(
    reads: UsageRows, edges: Sequence[float], dimension: str | None
) -> dict[Any, dict[int, float]]:
    """Return utilisation-weighted slot-seconds by group and step number."""
    hours = _hours_of_steps(reads, edges, dimension)
    is_known = ~np.isnan(hours.used)
    sums = _sums_of_steps(hours, np.where(is_known, hours.used, 0.0), edges, dimension)
    counts = _sums_of_steps(hours, is_known.astype(np.float64), edges, dimension)
    return {
        group: {int(step): float(sums[group][step]) for step in np.flatnonzero(counts[group])}
        for group in sums
    }


def _sums_of_steps(
    hours: HourlyUsage, values: Floats, edges: Sequence[float], dimension: str | None
) -> dict[Any, Floats]:
    """Return the sum of ``values`` in each step by group. An hour counts at its start."""
    steps, count = np.searchsorted(np.asarray(edges), hours.starts, side="right") - 1, len(edges) - 1
    inside = (steps >= 0) & (steps < count)
    groups = hours.groups if dimension else [None] if len(hours.starts) else []
    codes = hours.codes if dimension else np.zeros_like(hours.codes)
    places = codes[inside] * count + steps[inside]
    sums = np.bincount(places, values[inside], minlength=len(groups) * count).reshape(len(groups), count)
    return dict(zip(groups, sums, strict=True))


def _hours_of_steps(reads: UsageRows, edges: Sequence[float], dimension: str | None) -> HourlyUsage:
    days = all(edge % DAY == 0 for edge in edges)  # as the cubes of days, whose days are those of UTC
    return reads.hours(dimension, days=days) if dimension else reads.hours_any_dimension(days=days)
