"""Load the rows for usage queries. Each kind of row is loaded once and used for several results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db import connection

from telemetry.reads.usage_filters import (
    HARDWARE_JOINS_SQL,
    USAGE_DIMENSIONS,
    WORK_JOINS_SQL,
    UsageFilters,
    rollup_resolution,
)

SLOTS_SQL = "(upper(u.slots) - lower(u.slots))"
USAGE_MEASURES = (
    "held_seconds",
    "covered_seconds",
    "utilisation_seconds",
    "busy_seconds",
    "inefficient_seconds",
    "idle_seconds",
    "empty_seconds",
    "sm_active_seconds",
    "tensor_active_seconds",
)
USAGE_SUMS = (*USAGE_MEASURES, "energy_mj")
# Sum by allocation before joining, because there are many more rollups than allocations.
ROLLUPS_SQL = (
    "SELECT g.model, {key}, {name}, "
    + ", ".join(f"sum(r.{measure} * {SLOTS_SQL})" for measure in USAGE_MEASURES)
    + ", sum(r.energy_mj)"
    " FROM (SELECT allocation_id, unit_id, "
    + ", ".join(f"sum({name}) AS {name}" for name in USAGE_SUMS)
    + " FROM telemetry_rollup WHERE resolution = %s AND bucket >= %s AND bucket < %s GROUP BY 1, 2) r"
    " JOIN scheduler_allocation a ON a.id = r.allocation_id"
    + HARDWARE_JOINS_SQL.format(unit="r.unit_id")
    + WORK_JOINS_SQL
    + " WHERE true{where} GROUP BY 1, 2, 3"
)
HOURS_SQL = (
    f"SELECT {{key}}, extract(epoch FROM r.bucket)::bigint, sum(r.utilisation_seconds * {SLOTS_SQL}),"
    f" sum(r.covered_seconds * {SLOTS_SQL})"
    " FROM telemetry_rollup r JOIN scheduler_allocation a ON a.id = r.allocation_id"
    + HARDWARE_JOINS_SQL.format(unit="r.unit_id")
    + WORK_JOINS_SQL
    + " WHERE r.resolution = 3600 AND r.bucket >= %s AND r.bucket < %s{where} GROUP BY 1, 2"
)
HOLDS_SQL = (
    "SELECT {key}, {name}, extract(epoch FROM lower(a.period))::float8,"
    " extract(epoch FROM upper(a.period))::float8, "
    + SLOTS_SQL
    + ", a.borrowed FROM scheduler_allocation a"
    + HARDWARE_JOINS_SQL.format(unit="a.unit_id")
    + WORK_JOINS_SQL
    + " WHERE a.period && tstzrange(%s, %s){where}"
)


@dataclass(frozen=True, slots=True)
class HeldInterval:
    """The slots that a group held during an interval, clipped to the period, in seconds since the epoch."""

    group: Any
    name: str
    start: float
    end: float
    slots: int
    borrowed: bool


@dataclass(frozen=True, slots=True)
class HourlyUsage:
    """The slot-seconds of one group in one hour. ``start`` is in seconds since the epoch.

    ``covered`` is the time with samples, and ``used`` is this time weighted by utilisation. A value is None
    if nothing was measured.
    """

    group: Any
    start: int
    used: float | None
    covered: float | None


class UsageRows:
    """The rows for one set of filters. Each kind of row is loaded on first use."""

    def __init__(self, filters: UsageFilters) -> None:
        self.filters = filters
        self._rollups: dict[str, list[tuple[str, Any, dict[str, Any]]]] = {}
        self._hours: dict[str, list[HourlyUsage]] = {}
        self._holds: dict[str, list[HeldInterval]] = {}

    def rollups(self, dimension: str) -> list[tuple[str, Any, dict[str, Any]]]:
        """Return one (model, group, sums) row for each model and group.

        ``sums`` maps each measure to slot-seconds. It also contains ``energy_mj`` and the group's ``name``.
        """
        if dimension not in self._rollups:
            key, name = USAGE_DIMENSIONS[dimension]
            period = [rollup_resolution(self.filters), self.filters.start, self.filters.end]
            rows = self._run(ROLLUPS_SQL, key, name, period)
            self._rollups[dimension] = [
                (row[0], row[1], {"name": row[2], **dict(zip(USAGE_SUMS, row[3:], strict=True))})
                for row in rows
            ]
        return self._rollups[dimension]

    def sums(self, dimension: str) -> dict[Any, dict[str, Any]]:
        """Return the sums over all models and the name of each group, by group."""
        return _sum_by_group((group, sums) for _, group, sums in self.rollups(dimension))

    def sums_by_model(self) -> dict[Any, dict[str, Any]]:
        """Return the sums by model.

        Every dimension gives the same sums, so the rows of a dimension that is already loaded are used.
        """
        known = next(iter(self._rollups), "team")
        return _sum_by_group((model, sums) for model, _, sums in self.rollups(known))

    def hours(self, dimension: str) -> list[HourlyUsage]:
        """Return the usage of each hour by group."""
        if dimension not in self._hours:
            rows = self._run(
                HOURS_SQL, USAGE_DIMENSIONS[dimension][0], "", [self.filters.start, self.filters.end]
            )
            self._hours[dimension] = [HourlyUsage(*row) for row in rows]
        return self._hours[dimension]

    def hours_any_dimension(self) -> list[HourlyUsage]:
        """Return the usage of each hour, grouped by any dimension, for callers that add up all groups.

        The rows of a dimension that is already loaded are used.
        """
        return self.hours(next(iter(self._hours), "team"))

    def holds(self, dimension: str) -> list[HeldInterval]:
        """Return the held intervals of the period by group."""
        if dimension not in self._holds:
            low, high = self.filters.start.timestamp(), self.filters.end.timestamp()
            rows = self._run(HOLDS_SQL, *USAGE_DIMENSIONS[dimension], [self.filters.start, self.filters.end])
            self._holds[dimension] = [
                HeldInterval(
                    group, label, max(start, low), high if end is None else min(end, high), slots, borrowed
                )
                for group, label, start, end, slots, borrowed in rows
            ]
        return self._holds[dimension]

    def _run(self, sql: str, key: str, name: str, values: list[Any]) -> list[tuple[Any, ...]]:
        where, more = self.filters.sql()
        with connection.cursor() as cursor:
            cursor.execute(sql.format(key=key, name=name, where=where), [*values, *more])
            return list(cursor.fetchall())


def _sum_by_group(rows: Iterable[tuple[Any, dict[str, Any]]]) -> dict[Any, dict[str, Any]]:
    """Return the sums of each group. A sum is None only if every part is None."""
    parts: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for group, sums in rows:
        parts[group].append(sums)
    return {
        group: {
            "name": some[0]["name"],
            **{name: _sum_known(part[name] for part in some) for name in USAGE_SUMS},
        }
        for group, some in parts.items()
    }


def _sum_known(values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
