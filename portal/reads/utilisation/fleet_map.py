"""Return the busy share of the hosts over time. Many hosts and hours are folded into few rows and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from portal.answer_cache import cache_get_many, cache_set_many
from portal.reads.utilisation.query import UtilisationScope
from telemetry.reads.utilisation.fleet_map import UNKNOWN, HostDay, days_of, folded, host_days, joined_days
from telemetry.rollups.whole_days import rollup_state

MAX_ROWS, MAX_STEPS = 96, 96
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Seconds for which the use of a past day, and of the present day, is cached.
PAST_DAY_SECONDS, OPEN_DAY_SECONDS = 7 * 86_400, 60
WARM_DAYS, WARM_DAYS_AT_ONCE = 31, 4


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
    of_days = cached_host_days(days, scope.usage_rows.state.versions, scope.now)
    busy, weight = joined_days(of_days, [pk for pk, _, _ in hosts])
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


def cached_host_days(
    days: Sequence[datetime], versions: Mapping[datetime, int], now: datetime
) -> list[HostDay]:
    """Return the use of all hosts on each day. Only days that are not in the cache are read.

    A late sample changes the version of its day, and so the key of the day in the cache.
    """
    keys = _keys(days, versions)
    known = cache_get_many(keys.values())
    found: dict[datetime, HostDay] = {day: known[key] for day, key in keys.items() if key in known}
    missing = host_days([day for day in days if day not in found])
    for is_past, seconds in ((True, PAST_DAY_SECONDS), (False, OPEN_DAY_SECONDS)):
        fresh = {keys[day]: use for day, use in missing.items() if (day + DAY <= now) is is_past}
        if fresh:
            cache_set_many(fresh, seconds)
    found |= missing
    return [found[day] for day in days]


def warm_host_days(now: datetime) -> None:
    """Read some of the last WARM_DAYS days into the cache, so that no request has to read many of them."""
    start = now - WARM_DAYS * DAY
    versions = rollup_state(start, now).versions
    past = [day for day in days_of(start, now) if day + DAY <= now]
    keys = _keys(past, versions)
    known = cache_get_many(keys.values())
    missing = [day for day, key in keys.items() if key not in known]
    cached_host_days(missing[-WARM_DAYS_AT_ONCE:], versions, now)


def _keys(days: Sequence[datetime], versions: Mapping[datetime, int]) -> dict[datetime, str]:
    return {day: f"fleet-map:{day.astimezone(UTC):%Y%m%d}:{versions.get(day, 0)}" for day in days}
