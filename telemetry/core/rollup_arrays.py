"""Sum the samples of many units by time bucket and allocation at once, with numpy.

``rollup.py`` is the definition: ``roll_up_arrays`` gives the integers that ``roll_up_readings`` gives for
each unit and bucket. Times are in microseconds since the epoch, sums in millionths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from telemetry.core.reading_bounds import max_energy_mj
from telemetry.core.rollup import (
    BUSY_PERCENT,
    COVERAGE_TOLERANCE_SECONDS,
    LOW_SM_PERCENT,
    LOW_TENSOR_PERCENT,
    SAMPLE_REACH_SECONDS,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

UNKNOWN = -1  # an unknown count; an unknown percentage is NaN
_REACH_MICROS = round(SAMPLE_REACH_SECONDS * 1e6)
_TOLERANCE_MICROS = round(COVERAGE_TOLERANCE_SECONDS * 1e6)


@dataclass(frozen=True, slots=True)
class ReadingArrays:
    """The samples of many units, sorted by unit and time. ``unit`` is the position of the unit."""

    unit: Ints
    ts: Ints
    utilisation: Floats
    sm_active: Floats
    tensor_active: Floats
    memory_used_mib: Ints
    energy_mj: Ints
    processes: Ints


@dataclass(frozen=True, slots=True)
class HoldArrays:
    """The intervals in which allocations held units, sorted by unit and time. They do not overlap."""

    unit: Ints
    allocation: Ints
    start: Ints
    end: Ints


@dataclass(frozen=True, slots=True)
class UsageArrays:
    """The usage by unit, bucket and allocation, sorted in this order.

    ``unit`` is the position of the unit, ``bucket`` the number of the bucket, and ``allocation`` 0 for time
    in which nobody held the unit. ``sums`` has a value for each name of ``UsageSums``, and ``known`` says
    which values are known. If a name is not in ``known``, all its values are known.
    """

    unit: Ints
    bucket: Ints
    allocation: Ints
    sums: Mapping[str, Ints]
    known: Mapping[str, Bools]

    def __len__(self) -> int:
        return len(self.unit)

    def select(self, chosen: npt.NDArray[np.generic]) -> UsageArrays:
        """Return the chosen rows, given as a mask or as positions."""
        return UsageArrays(
            self.unit[chosen],
            self.bucket[chosen],
            self.allocation[chosen],
            {name: values[chosen] for name, values in self.sums.items()},
            {name: values[chosen] for name, values in self.known.items()},
        )


@dataclass(frozen=True, slots=True)
class _Segments:
    """The parts of the period with one unit, bucket and holder each, in order.

    ``low`` and ``high`` are on one axis for all units: position of the unit x length of the period + time
    since the start. ``group`` is the number of the segment's unit, bucket and holder.
    """

    low: Ints
    high: Ints
    group: Ints
    group_unit: Ints
    group_bucket: Ints
    group_owner: Ints


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The parts of readings that lie in one segment each, in order of the groups."""

    reading: Ints
    group: Ints
    micros: Ints


def roll_up_arrays(
    readings: ReadingArrays,
    held: HoldArrays,
    power_limit_w: Floats,
    start: int,
    end: int,
    bucket_micros: int = 60_000_000,
) -> UsageArrays:
    """Return the usage of the buckets in ``[start, end)`` that have samples or covered time.

    ``power_limit_w`` has the limit of each unit. ``readings`` include those up to SAMPLE_REACH_SECONDS before
    and after the period.
    """
    segments = _segments(held, len(power_limit_w), end - start, bucket_micros, start)
    first, last_segment, since = _covered_segments(readings, segments, start, end)
    pieces = _pieces(readings, segments, first, last_segment, since, start, end)
    energy, is_fault = _energy_since(readings, power_limit_w)
    count = len(segments.group_unit)
    sums: dict[str, Ints] = {}
    known: dict[str, Bools] = {}
    sums["held_seconds"] = _sum(segments.group, segments.high - segments.low, count)
    sums["covered_seconds"] = _sum(pieces.group, pieces.micros, count)
    _sum_kinds(readings, pieces, count, sums, known)
    _sum_percentages(readings, pieces, count, sums, known)
    _maxima(readings, pieces, count, sums, known)
    total = (readings.ts - since)[pieces.reading]
    used = energy[pieces.reading]
    shares = np.rint(np.maximum(used, 0) * pieces.micros.astype(np.float64) / total)
    sums["energy_mj"], known["energy_mj"] = _sum_known(pieces, shares, used != UNKNOWN, count)
    inside = (readings.ts >= start) & (readings.ts < end)
    at = segments.group[_segment_at(readings, segments, start, end)]
    sums["samples"] = _sum(at[inside], np.ones(int(inside.sum()), np.int64), count)
    sums["energy_faults"] = _sum(
        at[inside & is_fault], np.ones(int((inside & is_fault).sum()), np.int64), count
    )
    known["energy_faults"] = sums["energy_faults"] > 0
    usage = UsageArrays(segments.group_unit, segments.group_bucket, segments.group_owner, sums, known)
    return usage.select(_is_sampled(usage, (end - start) // bucket_micros))


def loses_coverage(before: Ints, after: Ints) -> Bools:
    """Return True where covered microseconds would fall, as ``would_lose_coverage`` does for one value."""
    lost: Bools = after < before - _TOLERANCE_MICROS
    return lost


def _segments(held: HoldArrays, units: int, span: int, bucket_micros: int, start: int) -> _Segments:
    lows = np.clip(held.start - start, 0, span)
    highs = np.clip(held.end - start, 0, span)
    inside = lows < highs
    begins, ends = held.unit[inside] * span + lows[inside], held.unit[inside] * span + highs[inside]
    owners = held.allocation[inside]
    grid = (
        np.arange(units, dtype=np.int64)[:, None] * span + np.arange(0, span, bucket_micros, dtype=np.int64)
    ).reshape(-1)
    low = grid if not len(begins) else np.unique(np.concatenate([grid, begins, ends]))
    low = low[low < units * span]
    high = np.append(low[1:], units * span)
    owner = np.zeros(len(low), np.int64)
    if len(begins):
        hold = np.searchsorted(begins, low, side="right") - 1
        is_held = (hold >= 0) & (ends[hold] > low)
        owner[is_held] = owners[hold[is_held]]
    bucket = low // span * (span // bucket_micros) + low % span // bucket_micros
    order = np.lexsort((owner, bucket))
    is_first = np.ones(len(low), bool)
    is_first[1:] = (np.diff(bucket[order]) != 0) | (np.diff(owner[order]) != 0)
    group = np.empty(len(low), np.int64)
    group[order] = np.cumsum(is_first) - 1
    firsts = order[is_first]
    of_group = bucket[firsts]
    buckets = span // bucket_micros
    return _Segments(low, high, group, of_group // buckets, of_group % buckets, owner[firsts])


def _segment_at(readings: ReadingArrays, segments: _Segments, start: int, end: int) -> Ints:
    """Return the segment that contains each reading's time. Times outside the period are moved into it."""
    keys = readings.unit * (end - start) + np.clip(readings.ts - start, 0, end - start - 1)
    return np.searchsorted(segments.low, keys, side="right") - 1


def _covered_segments(
    readings: ReadingArrays, segments: _Segments, start: int, end: int
) -> tuple[Ints, Ints, Ints]:
    """Return the first and last segment that each reading covers, and the time since which it covers.

    A reading that covers nothing has a first segment after its last one.
    """
    since = readings.ts - _REACH_MICROS
    same = np.flatnonzero(readings.unit[1:] == readings.unit[:-1]) + 1
    since[same] = np.maximum(since[same], readings.ts[same - 1])
    span = end - start
    low, high = np.maximum(since, start), np.minimum(readings.ts, end)
    low_key = readings.unit * span + (low - start)
    high_key = readings.unit * span + (high - start)
    last = np.searchsorted(segments.low, high_key, side="left") - 1
    first = last.copy()
    covers = low < high
    first[~covers] = last[~covers] + 1
    earlier = np.flatnonzero(covers)
    # Few readings begin in an earlier segment than they end in.
    while len(earlier := earlier[segments.low[first[earlier]] > low_key[earlier]]):
        first[earlier] -= 1
    return first, last, since


def _pieces(
    readings: ReadingArrays,
    segments: _Segments,
    first: Ints,
    last: Ints,
    since: Ints,
    start: int,
    end: int,
) -> _Pieces:
    span = end - start
    counts = last - first + 1
    reading = np.repeat(np.arange(len(counts)), counts)
    offsets = np.cumsum(counts) - counts
    segment = (first - offsets)[reading] + np.arange(len(reading))
    base = readings.unit * span - start
    low = np.maximum((base + np.maximum(since, start))[reading], segments.low[segment])
    high = np.minimum((base + np.minimum(readings.ts, end))[reading], segments.high[segment])
    group = segments.group[segment]
    micros = high - low
    if np.any(group[1:] < group[:-1]):  # an allocation ended and the unit was free before and after
        order = np.argsort(group, kind="stable")
        return _Pieces(reading[order], group[order], micros[order])
    return _Pieces(reading, group, micros)


def _energy_since(readings: ReadingArrays, power_limit_w: Floats) -> tuple[Ints, Bools]:
    """Return the millijoules since the unit's previous reading, and True where the counter is impossible."""
    energy = np.full(len(readings.ts), UNKNOWN, np.int64)
    is_fault = np.zeros(len(readings.ts), bool)
    micros = np.diff(readings.ts)
    is_known = (readings.unit[1:] == readings.unit[:-1]) & (micros <= _REACH_MICROS)
    is_known &= (readings.energy_mj[1:] != UNKNOWN) & (readings.energy_mj[:-1] != UNKNOWN)
    at = np.flatnonzero(is_known)
    used = readings.energy_mj[at + 1] - readings.energy_mj[at]
    most = max_energy_mj(power_limit_w[readings.unit[at + 1]], micros[at] / 1e6)
    is_possible = (used >= 0) & (used <= most)
    energy[at[is_possible] + 1] = used[is_possible]
    is_fault[at[~is_possible] + 1] = True
    return energy, is_fault


def _sum_kinds(
    readings: ReadingArrays, pieces: _Pieces, count: int, sums: dict[str, Ints], known: dict[str, Bools]
) -> None:
    """Add busy, idle and empty time, and the parts of busy time."""
    has_sm = ~np.isnan(readings.sm_active)
    # NVML reports no utilisation for MIG slices: use SM activity.
    activity = np.where(np.isnan(readings.utilisation), readings.sm_active, readings.utilisation)
    busy = activity >= BUSY_PERCENT
    empty = ~busy & (readings.processes == 0)
    idle = ~busy & ~empty & ~np.isnan(activity)
    judged = busy & ~(readings.tensor_active >= LOW_TENSOR_PERCENT)
    kinds = {
        "busy_seconds": busy,
        "idle_seconds": idle,
        "empty_seconds": empty,
        "sm_unmeasured_seconds": judged & ~has_sm,
        "inefficient_seconds": judged & has_sm & (readings.sm_active < LOW_SM_PERCENT),
    }
    for name, is_kind in kinds.items():
        sums[name] = _sum(pieces.group, np.where(is_kind[pieces.reading], pieces.micros, 0), count)
    is_known = (sums["busy_seconds"] + sums["idle_seconds"] + sums["empty_seconds"]) > 0
    known |= dict.fromkeys(("busy_seconds", "idle_seconds", "empty_seconds"), is_known)
    has_busy = sums["busy_seconds"] > 0
    known |= dict.fromkeys(("sm_unmeasured_seconds", "inefficient_seconds"), has_busy)


def _sum_percentages(
    readings: ReadingArrays, pieces: _Pieces, count: int, sums: dict[str, Ints], known: dict[str, Bools]
) -> None:
    for name in ("utilisation", "sm_active", "tensor_active"):
        percent = getattr(readings, name)[pieces.reading]
        is_known = ~np.isnan(percent)
        values = np.rint(np.where(is_known, percent, 0.0) * pieces.micros / 100.0)
        sums[f"{name}_seconds"], known[f"{name}_seconds"] = _sum_known(pieces, values, is_known, count)
    for name, measure in (
        ("utilisation", "utilisation_unknown_seconds"),
        ("sm_active", "sm_unknown_seconds"),
    ):
        is_unknown = np.isnan(getattr(readings, name))[pieces.reading]
        sums[measure] = _sum(pieces.group, np.where(is_unknown, pieces.micros, 0), count)
        known[measure] = sums[measure] > 0


def _maxima(
    readings: ReadingArrays, pieces: _Pieces, count: int, sums: dict[str, Ints], known: dict[str, Bools]
) -> None:
    utilisation = np.rint(readings.utilisation * 1e6)
    utilisation = np.where(np.isnan(utilisation), UNKNOWN, utilisation).astype(np.int64)
    starts = np.flatnonzero(np.diff(pieces.group, prepend=-1))
    for name, values in (("utilisation_max", utilisation), ("memory_used_max_mib", readings.memory_used_mib)):
        highest = np.full(count, UNKNOWN, np.int64)
        if len(starts):
            highest[pieces.group[starts]] = np.maximum.reduceat(values[pieces.reading], starts)
        sums[name], known[name] = np.maximum(highest, 0), highest != UNKNOWN


def _sum(group: Ints, values: npt.NDArray[np.generic], count: int) -> Ints:
    # The sums are whole numbers below 2**53, so floating point is exact.
    return np.bincount(group, weights=values, minlength=count).astype(np.int64)


def _sum_known(pieces: _Pieces, values: Floats, is_known: Bools, count: int) -> tuple[Ints, Bools]:
    if not is_known.any():
        return np.zeros(count, np.int64), np.zeros(count, bool)
    if is_known.all():
        has = np.bincount(pieces.group, minlength=count) > 0
        return _sum(pieces.group, values, count), has
    has = np.bincount(pieces.group[is_known], minlength=count) > 0
    return _sum(pieces.group, np.where(is_known, values, 0.0), count), has


def _is_sampled(usage: UsageArrays, buckets: int) -> Bools:
    """Return True for the rows of units and buckets with samples or covered time."""
    key = usage.unit * buckets + usage.bucket
    has = (usage.sums["covered_seconds"] > 0) | (usage.sums["samples"] > 0)
    sampled: Bools = np.isin(key, key[has]) if not has.all() else has
    return sampled
