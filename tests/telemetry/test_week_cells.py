"""Test that each hour is in the cell of its weekday and hour in a time zone, also when the clock changes."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from telemetry.reads.utilisation.week import CELLS, cells_of_week, highest_of_week


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"])
@pytest.mark.parametrize("month", [3, 10, 11])
def test_each_hour_has_the_cell_of_its_local_time(zone: str, month: int) -> None:
    first = int(datetime(2026, month, 1, tzinfo=UTC).timestamp())
    starts = first + 3600 * np.arange(31 * 24)
    local = [datetime.fromtimestamp(start, ZoneInfo(zone)) for start in starts.tolist()]
    expected = [24 * at.weekday() + at.hour for at in local]
    assert cells_of_week(starts, ZoneInfo(zone)).tolist() == expected


def test_the_hour_of_a_cell_is_the_last_one_with_the_highest_value() -> None:
    monday = int(datetime(2026, 3, 2, 9, tzinfo=UTC).timestamp())
    weeks = monday + 7 * 86_400 * np.arange(3)
    found = highest_of_week(weeks, np.array([2.0, 3.0, 3.0]), UTC)
    assert found[0][9] == weeks[2]
    assert sum(cell is None for day in found for cell in day) == CELLS - 1
