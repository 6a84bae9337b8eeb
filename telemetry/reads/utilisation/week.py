"""Assign hours to the cells of a week: seven weekdays, Monday first, with 24 hours each, in a time zone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import TypeVar

import numpy as np

from telemetry.core.rollup import DAY, HOUR
from telemetry.reads.usage_rows import Floats, Integers

DAYS, HOURS_OF_DAY = 7, 24
CELLS = DAYS * HOURS_OF_DAY
WEEKDAY_OF_EPOCH = 3  # 1 January 1970 was a Thursday
Cell = TypeVar("Cell")


def cells_of_week(starts: Integers, zone: tzinfo) -> Integers:
    """Return the number of the cell of each time, in seconds since the epoch."""
    local = starts + _offsets(starts, zone)
    return (local // DAY + WEEKDAY_OF_EPOCH) % DAYS * HOURS_OF_DAY + local % DAY // HOUR


def highest_of_week(starts: Integers, values: Floats, zone: tzinfo) -> list[list[int | None]]:
    """Return the time with the highest value in each cell; None for a cell without a time.

    Of times with the same value, the last one counts.
    """
    order = np.lexsort((starts, values))
    found: list[int | None] = [None] * CELLS
    for cell, start in zip(cells_of_week(starts[order], zone).tolist(), starts[order].tolist(), strict=True):
        found[cell] = start
    return by_weekday(found)


def by_weekday(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return the cells of each weekday."""
    return [list(cells[HOURS_OF_DAY * day : HOURS_OF_DAY * (day + 1)]) for day in range(DAYS)]


def _offsets(starts: Integers, zone: tzinfo) -> Integers:
    """Return the offset of the zone at each time, in seconds.

    Only on days (UTC) that begin and end with different offsets, the offset of each time is computed.
    """
    days, places = np.unique(starts // DAY, return_inverse=True)
    low = np.array([_offset(day * DAY, zone) for day in days.tolist()], dtype=np.int64)
    high = np.array([_offset((day + 1) * DAY, zone) for day in days.tolist()], dtype=np.int64)
    offsets = low[places]
    for place in np.flatnonzero((low != high)[places]).tolist():
        offsets[place] = _offset(int(starts[place]), zone)
    return offsets


def _offset(second: int, zone: tzinfo) -> int:
    offset = datetime.fromtimestamp(second, zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())
