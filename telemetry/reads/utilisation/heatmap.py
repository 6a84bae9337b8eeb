"""Return mean utilisation by weekday and hour."""

from __future__ import annotations

from datetime import UTC, tzinfo

import numpy as np

from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_rows import Floats, UsageRows
from telemetry.reads.utilisation.week import CELLS, by_weekday, cells_of_week, highest_of_week


def utilisation_heatmap(
    filters: UsageFilters, reads: UsageRows | None = None, zone: tzinfo = UTC
) -> list[list[float | None]]:
    """Return the mean utilisation of held GPUs, 0 to 1, by weekday (Monday first) and hour in ``zone``.

    A cell is None if nothing was measured.
    """
    hours = (reads or UsageRows(filters)).hours_any_dimension()
    is_known = ~np.isnan(hours.used) & (hours.known > 0)
    cells = cells_of_week(hours.starts[is_known], zone)
    used = np.bincount(cells, hours.used[is_known], CELLS)
    known = np.bincount(cells, hours.known[is_known], CELLS)
    shares = [
        min(1.0, of_used / of_known) if of_known else None
        for of_used, of_known in zip(used.tolist(), known.tolist(), strict=True)
    ]
    return by_weekday(shares)


def busiest_hours(reads: UsageRows, zone: tzinfo) -> list[list[int | None]]:
    """Return the hour with the most use of each weekday and hour in ``zone``, in seconds since the epoch.

    A cell is None if the period has no such hour.
    """
    hours = reads.hours_any_dimension()
    starts, places = np.unique(hours.starts, return_inverse=True)
    used: Floats = np.bincount(places, np.nan_to_num(hours.used), len(starts)).astype(np.float64)
    return highest_of_week(starts, used, zone)
