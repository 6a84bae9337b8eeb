"""Return mean utilisation by weekday and hour."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, tzinfo

from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_rows import UsageRows


def utilisation_heatmap(
    filters: UsageFilters, reads: UsageRows | None = None, zone: tzinfo = UTC
) -> list[list[float | None]]:
    """Return the mean utilisation of held GPUs, 0 to 1, by weekday (Monday first) and hour in ``zone``.

    A cell is None if nothing was measured.
    """
    used: dict[tuple[int, int], float] = defaultdict(float)
    known: dict[tuple[int, int], float] = defaultdict(float)
    for hour in (reads or UsageRows(filters)).hours_any_dimension():
        if hour.used is not None and hour.known:
            at = datetime.fromtimestamp(hour.start, zone)
            used[at.weekday(), at.hour] += hour.used
            known[at.weekday(), at.hour] += hour.known
    cells: list[list[float | None]] = [[None] * 24 for _ in range(7)]
    for (day, of_day), seconds in known.items():
        cells[day][of_day] = min(1.0, used[day, of_day] / seconds)
    return cells
