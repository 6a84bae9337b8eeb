"""Merge the usage of shorter buckets of many units at once, with numpy.

``merge_finer_usage`` in ``rollup.py`` is the definition: ``merge_arrays`` gives its integers for each unit.
Times are in microseconds since the epoch, sums in millionths.
"""

from __future__ import annotations

import numpy as np

from telemetry.core.rollup import SCALED_FIELDS
from telemetry.core.rollup_arrays import Bools, HoldArrays, Ints, UsageArrays


def merge_arrays(parts: UsageArrays, held: HoldArrays, start: int, end: int) -> UsageArrays:
    """Return the usage in ``[start, end)`` by unit and allocation, in bucket 0.

    ``parts`` has the sums of the shorter buckets: one row per unit and allocation, in this order. ``held``
    has all holds of the units in the period.
    """
    unit, allocation, micros = _held_time(parts, held, start, end)
    place, is_found = _places(parts, unit, allocation)
    covered = _at(parts.sums["covered_seconds"], place)
    is_over = covered > micros
    sums: dict[str, Ints] = {}
    known: dict[str, Bools] = {}
    for name, values in parts.sums.items():
        merged = _at(values, place)
        if name in SCALED_FIELDS and is_over.any():
            shares = merged[is_over] * micros[is_over].astype(np.float64) / covered[is_over]
            merged[is_over] = np.rint(shares).astype(np.int64)
        sums[name] = merged
        if name in parts.known:
            known[name] = is_found & np.append(parts.known[name], False)[place]
    sums["held_seconds"] = micros
    return UsageArrays(unit, np.zeros(len(unit), np.int64), allocation, sums, known)


def _held_time(parts: UsageArrays, held: HoldArrays, start: int, end: int) -> tuple[Ints, Ints, Ints]:
    """Return unit, allocation and held microseconds, in order of unit and allocation.

    Free time has the allocation 0. A unit has it only if ``parts`` has free time of this unit.
    """
    micros = np.minimum(held.end, end) - np.maximum(held.start, start)
    inside = micros > 0
    unit, allocation, micros = held.unit[inside], held.allocation[inside], micros[inside]
    with_free = parts.unit[parts.allocation == 0]
    used = np.bincount(unit, micros, int(max(unit.max(initial=-1), with_free.max(initial=-1))) + 1)
    free = end - start - used[with_free].astype(np.int64)
    with_free, free = with_free[free > 0], free[free > 0]
    unit = np.concatenate([unit, with_free])
    allocation = np.concatenate([allocation, np.zeros(len(with_free), np.int64)])
    micros = np.concatenate([micros, free])
    order = np.lexsort((allocation, unit))
    unit, allocation, micros = unit[order], allocation[order], micros[order]
    is_first = np.ones(len(unit), bool)
    is_first[1:] = (np.diff(unit) != 0) | (np.diff(allocation) != 0)
    starts = np.flatnonzero(is_first)
    total = np.add.reduceat(micros, starts) if len(starts) else micros
    return unit[starts], allocation[starts], total


def _places(parts: UsageArrays, unit: Ints, allocation: Ints) -> tuple[Ints, Bools]:
    """Return the row of ``parts`` with each unit and allocation, and True where it exists.

    The row is ``len(parts)`` if ``parts`` has none.
    """
    allocations = np.unique(np.concatenate([parts.allocation, allocation]))
    stored = parts.unit * len(allocations) + np.searchsorted(allocations, parts.allocation)
    wanted = unit * len(allocations) + np.searchsorted(allocations, allocation)
    place = np.searchsorted(stored, wanted)
    is_found = np.append(stored, -1)[place] == wanted
    return np.where(is_found, place, len(parts)), is_found


def _at(values: Ints, place: Ints) -> Ints:
    """Return the values at these places; 0 at the place after the last one."""
    return np.append(values, 0)[place]
