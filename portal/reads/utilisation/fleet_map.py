"""Return the busy share of the hosts over time. Many hosts and hours are folded into few rows and steps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from portal.answer_cache import cache_get, cache_set
from portal.reads.utilisation.query import UtilisationScope
from telemetry.reads.utilisation.fleet_map import UNKNOWN, HostDay, days_of, folded, host_day, joined_days

MAX_ROWS, MAX_STEPS = 96, 96
HOUR = timedelta(hours=1)
# Seconds for which the use of a past day, and of the present day, is cached.
PAST_DAY_SECONDS, OPEN_DAY_SECONDS = 3600, 60


@dataclass(frozen=True)
class FleetRow:
    """The use of the hosts from ``first`` to ``last`` by name. ``busy`` has per cent, or None, per step."""

    first: str
    last: str
    hosts: int
    busy: list[int | None]


@dataclass(frozen=True)
class FleetMap:
    """The rows of a fleet, in order of host names, and the start of each step of ``step``."""

    rows: list[FleetRow]
    starts: list[datetime]
    step: timedelta
    hosts: int
    gpus: int


def fleet_map(scope: UtilisationScope, first: str = "", last: str = "") -> FleetMap:
    """Return the use of the visible hosts from ``first`` to ``last``; of all of them without names.

    A long period has no rows, because it is not read by GPU.
    """
    start, end = scope.filters.start, min(scope.filters.end, scope.now)
    hosts = _hosts(scope, first, last)
    gpus = sum(count for _, _, count in hosts)
    if scope.filters.is_long or not hosts or end <= start:
        return FleetMap([], [], HOUR, len(hosts), gpus)
    days = days_of(start, end)
    busy, weight = joined_days([_host_day(day, scope.now) for day in days], [pk for pk, _, _ in hosts])
    low, high = int((start - days[0]) // HOUR), -int((days[0] - end) // HOUR)
    rows, steps = -(-len(hosts) // MAX_ROWS), -(-(high - low) // MAX_STEPS)
    cells = folded(busy[:, low:high], weight[:, low:high], rows, steps)
    names = [name for _, name, _ in hosts]
    found = [
        FleetRow(
            names[number * rows],
            names[min(len(names), (number + 1) * rows) - 1],
            min(len(names), (number + 1) * rows) - number * rows,
            [None if value == UNKNOWN else int(value) for value in line],
        )
        for number, line in enumerate(cells)
    ]
    starts = [days[0] + (low + number * steps) * HOUR for number in range(cells.shape[1])]
    return FleetMap(found, starts, steps * HOUR, len(hosts), gpus)


def _hosts(scope: UtilisationScope, first: str, last: str) -> list[tuple[int, str, int]]:
    """Return (id, name, number of GPUs) of the chosen hosts that the viewer may see, in order of name."""
    counts: dict[tuple[int, str], int] = {}
    for each in scope.host_gpus:
        if scope.filters.pool in (None, each.pool) and scope.filters.model in ("", each.model):
            key = each.host, each.host_name
            counts[key] = counts.get(key, 0) + each.count
    rows = sorted((name, host, count) for (host, name), count in counts.items())
    return [
        (host, name, count)
        for name, host, count in rows
        if (not first or name >= first) and (not last or name <= last)
    ]


def _host_day(day: datetime, now: datetime) -> HostDay:
    key = f"fleet-map:{day.astimezone(UTC):%Y%m%d}"
    known: HostDay | None = cache_get(key)
    if known is None:
        known = host_day(day)
        is_open = day + timedelta(days=1) > now
        cache_set(key, known, OPEN_DAY_SECONDS if is_open else PAST_DAY_SECONDS)
    return known
