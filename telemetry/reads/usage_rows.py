"""Load the rows for usage queries. Each kind of row is loaded once and used for several results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from django.db import connection

from telemetry.models import Rollup
from telemetry.reads.usage.charge_sums import ChargeSums, charge_sums, shared_dimensions
from telemetry.reads.usage_filters import (
    CUBE_DIMENSIONS,
    HARDWARE_JOINS_SQL,
    READ_DIMENSIONS,
    USER_TABLE,
    WORK_JOINS_SQL,
    UsageFilters,
)
from telemetry.rollups.cubes import cube_periods
from telemetry.rollups.storage import rollup_condition
from telemetry.rollups.whole_days import RollupState, rollup_state, use_rows

SLOTS_SQL = "(upper(u.slots) - lower(u.slots))"
USAGE_MEASURES = (
    "held_seconds",
    "covered_seconds",
    "utilisation_seconds",
    "busy_seconds",
    "inefficient_seconds",
    "sm_unmeasured_seconds",
    "idle_seconds",
    "empty_seconds",
    "sm_active_seconds",
    "tensor_active_seconds",
    "utilisation_unknown_seconds",
    "sm_unknown_seconds",
)
USAGE_SUMS = (*USAGE_MEASURES, "energy_mj")
# Sum by allocation before joining, because there are many more rollups than allocations.
ROLLUPS_SQL = (
    "SELECT g.model, {key}, {name}, "
    + ", ".join(f"sum(r.{measure} * {SLOTS_SQL})" for measure in USAGE_MEASURES)
    + ", sum(r.energy_mj)"
    " FROM (SELECT allocation_id, unit_id, "
    + ", ".join(f"sum({name}) AS {name}" for name in USAGE_SUMS)
    + " FROM {buckets} used WHERE allocation_id IS NOT NULL GROUP BY 1, 2) r"
    " JOIN scheduler_allocation a ON a.id = r.allocation_id"
    + HARDWARE_JOINS_SQL.format(unit="r.unit_id")
    + WORK_JOINS_SQL
    + " WHERE true{where} GROUP BY 1, 2, 3"
)
# The covered time whose utilisation is known.
KNOWN_SQL = "({0}.covered_seconds - coalesce({0}.utilisation_unknown_seconds, 0))"
# The time of the steps empty, idle and inefficient; NULL if the activity is unknown.
WASTED_SQL = "({0}.empty_seconds + {0}.idle_seconds + coalesce({0}.inefficient_seconds, 0))"
HOURS_SQL = (
    f"SELECT {{key}}, extract(epoch FROM r.bucket)::bigint, sum(r.utilisation_seconds * {SLOTS_SQL}),"
    f" sum({KNOWN_SQL.format('r')} * {SLOTS_SQL}), sum(r.held_seconds * {SLOTS_SQL})"
    " FROM (SELECT * FROM telemetry_rollup WHERE {buckets}) r"
    " JOIN scheduler_allocation a ON a.id = r.allocation_id"
    + HARDWARE_JOINS_SQL.format(unit="r.unit_id")
    + WORK_JOINS_SQL
    + " WHERE true{where} GROUP BY 1, 2"
)
# The hours of teams, with the aliases of HARDWARE_JOINS_SQL and WORK_JOINS_SQL.
TEAM_HOURS_SQL = (
    "SELECT {key}, extract(epoch FROM c.bucket)::bigint, sum(c.utilisation_seconds), sum(c.known_seconds),"
    " sum(c.held_seconds) FROM telemetry_rollupteamcube c CROSS JOIN LATERAL (SELECT c.pool_id, c.model) g"
    " CROSS JOIN LATERAL (SELECT c.team_id) p CROSS JOIN LATERAL (SELECT NULL::bigint AS owner_id) w"
    " WHERE {buckets}{where} GROUP BY 1, 2"
)
# The aliases of HARDWARE_JOINS_SQL and WORK_JOINS_SQL for the rows of cubes.
CUBES_SQL = (
    " FROM telemetry_rollupcube c CROSS JOIN LATERAL (SELECT c.pool_id, c.model) g"
    " CROSS JOIN LATERAL (SELECT c.owner_id, c.type) w LEFT JOIN scheduler_pool pool ON pool.id = c.pool_id"
    " LEFT JOIN scheduler_project p ON p.id = c.project_id LEFT JOIN scheduler_team t ON t.id = p.team_id"
    f" LEFT JOIN {USER_TABLE} o ON o.id = c.owner_id WHERE {{buckets}}{{where}} GROUP BY 1, 2"
)
CUBE_TOTALS_SQL = (
    "SELECT g.model, {key}, {name}, "
    + ", ".join(f"sum(c.{measure})" for measure in USAGE_SUMS)
    + CUBES_SQL
    + ", 3"
)
CUBE_HOURS_SQL = (
    "SELECT {key}, extract(epoch FROM c.bucket)::bigint, sum(c.utilisation_seconds),"
    f" sum({KNOWN_SQL.format('c')}), sum(c.held_seconds)" + CUBES_SQL
)
# The number of the part of the period, and the wasted time. A part of which nothing is known has no row.
PART_SQL = "SELECT {{key}}, least(%s - 1, floor((extract(epoch FROM {0}.bucket) - %s) / %s))::int, sum("
CUBE_WASTED_SQL = (
    f"{PART_SQL.format('c')}{WASTED_SQL.format('c')}){CUBES_SQL}"
    f" HAVING sum({WASTED_SQL.format('c')}) IS NOT NULL"
)
# The parts of the period that a day or an hour overlaps, and the share of its time in each of them.
CUBE_PARTS_SQL = (
    " CROSS JOIN LATERAL (SELECT number, (least(at + c.resolution, first + length * (number + 1))"
    " - greatest(at, first + length * number)) / c.resolution AS share"
    " FROM (SELECT extract(epoch FROM c.bucket)::float8 AS at, %s::float8 AS first, %s::float8 AS length)"
    " AS edges"
    " CROSS JOIN generate_series(0, %s - 1) AS number"
    " WHERE at < first + length * (number + 1) AND at + c.resolution > first + length * number) part"
)
LONG_WASTED_SQL = (
    f"SELECT {{key}}, part.number, sum({WASTED_SQL.format('c')} * part.share)"
    + CUBES_SQL.replace(" WHERE ", f"{CUBE_PARTS_SQL} WHERE ")
    + f" HAVING sum({WASTED_SQL.format('c')}) IS NOT NULL"
)
ROLLUP_WASTED_SQL = (
    f"{PART_SQL.format('r')}{WASTED_SQL.format('r')} * {SLOTS_SQL})"
    " FROM (SELECT * FROM telemetry_rollup WHERE {buckets}) r"
    " JOIN scheduler_allocation a ON a.id = r.allocation_id"
    + HARDWARE_JOINS_SQL.format(unit="r.unit_id")
    + WORK_JOINS_SQL
    + f" WHERE true{{where}} GROUP BY 1, 2 HAVING sum({WASTED_SQL.format('r')}) IS NOT NULL"
)
# PostgreSQL finds the stored rows of allocations by an index.
OF_WORKLOADS_SQL = (
    " AND allocation_id = ANY(ARRAY("
    "SELECT id FROM scheduler_allocation WHERE workload_id = ANY(%s::bigint[])))"
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


# The dimensions whose groups are texts. The groups of the others are ids.
TEXT_DIMENSIONS = frozenset({"type", "model"})
Statement = tuple[str, list[Any]]  # SQL and its parameters


class HeldInterval(NamedTuple):
    """The slots that a group held during an interval, clipped to the period, in seconds since the epoch."""

    group: Any
    name: str
    start: float
    end: float
    slots: int
    borrowed: bool


Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class HourlyUsage:
    """The slot-seconds of groups in hours, as columns: row ``n`` is about the group ``groups[codes[n]]``.

    ``starts`` are in seconds since the epoch. ``known`` is the time whose utilisation is known, and ``used``
    is this time weighted by utilisation. Both are NaN if no sample arrived. ``held`` includes time without
    samples.
    """

    groups: list[Any]
    codes: Integers
    starts: Integers
    used: Floats
    known: Floats
    held: Floats

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Any, ...]]) -> HourlyUsage:
        """Return the columns of (group, start, used, known, held) rows."""
        number: dict[Any, int] = {}
        codes = [number.setdefault(row[0], len(number)) for row in rows]
        columns = [[row[place] for row in rows] for place in range(1, 5)]
        return cls(
            list(number),
            np.array(codes, dtype=np.int64),
            np.array(columns[0], dtype=np.int64),
            *(np.array(column, dtype=np.float64) for column in columns[1:]),  # None becomes NaN
        )


class UsageRows:
    """The rows for one set of filters. Each kind of row is loaded on first use.

    ``state`` is the state of the rollups, if the caller knows it.
    """

    def __init__(self, filters: UsageFilters, state: RollupState | None = None) -> None:
        self.filters = filters
        if state is not None:
            self.state = state
        self._rollups: dict[str, list[tuple[str, Any, dict[str, Any]]]] = {}
        self._hours: dict[tuple[str, bool], HourlyUsage] = {}
        self._holds: dict[str, list[HeldInterval]] = {}

    def rollups(self, dimension: str) -> list[tuple[str, Any, dict[str, Any]]]:
        """Return (model, group, sums) rows, one for each model and group.

        ``sums`` maps each measure to slot-seconds. It also contains ``energy_mj`` and the group's ``name``.
        """
        if dimension not in self._rollups:
            load_rollups([(self, dimension)])
        return self._rollups[dimension]

    @cached_property
    def charges(self) -> list[ChargeSums]:
        """Return the sums of the charge lines by ``shared_dimensions``."""
        return charge_sums([self.filters], shared_dimensions(self.filters))[0]

    @cached_property
    def state(self) -> RollupState:
        """Return which rollups are complete."""
        return rollup_state(self.filters.start, self.filters.end)

    def _cubes(self, *, days: bool = True) -> tuple[tuple[str, list[Any]] | None, datetime]:
        """Return an SQL condition on cubes with its parameters, and the time from which rollups are read."""
        until = self.state.cubes_until
        start, end = self.filters.start, self.filters.end
        if until is None or until <= start:
            return None, start
        periods = (
            cube_periods(start, end, until)
            if days
            else [(int(Rollup.Resolution.HOUR), start, min(end, until))]
        )
        parts = ["(c.resolution = %s AND c.bucket >= %s AND c.bucket < %s)"] * len(periods)
        return (f"({' OR '.join(parts)})", [value for period in periods for value in period]), until

    def sums(self, dimension: str) -> dict[Any, dict[str, Any]]:
        """Return the sums over all models and the name of each group, by group."""
        return _sum_by_group((group, sums) for _, group, sums in self.rollups(dimension))

    def sums_by_model(self) -> dict[Any, dict[str, Any]]:
        """Return the sums by model.

        Every dimension gives the same sums, so the rows of a dimension that is already loaded are used.
        """
        known = next(iter(self._rollups), "team")
        return _sum_by_group((model, sums) for model, _, sums in self.rollups(known))

    def hours(self, dimension: str, *, days: bool = False) -> HourlyUsage:
        """Return the usage of each hour by group. If ``days`` is True, one row may cover a whole day."""
        if (dimension, False) in self._hours:
            return self._hours[dimension, False]
        if (dimension, days) not in self._hours:
            load_hours([(self, dimension)], days=days)
        return self._hours[dimension, days]

    def hours_any_dimension(self, *, days: bool = False) -> HourlyUsage:
        """Return the usage of each hour, grouped by any dimension, for callers that add up all groups.

        The rows of a dimension that is already loaded are used.
        """
        loaded = (key for key in self._hours if days or not key[1])
        dimension, of_days = next(loaded, ("team", days))
        return self.hours(dimension, days=of_days)

    def wasted_parts(self, dimension: str, groups: list[int], parts: int) -> list[tuple[int, int, float]]:
        """Return (group, number of the part, slot-seconds) of ``parts`` equal parts of the period.

        The time is that of the steps empty, idle and inefficient. A long period is read by day. The time of a
        day in two parts is divided in proportion. Runs one query, and none without groups.
        """
        if not groups:
            return []
        key, _ = READ_DIMENSIONS[dimension]
        length = (self.filters.end - self.filters.start).total_seconds() / parts
        is_long = self.filters.is_long
        cubes, start = (
            self._cubes(days=is_long) if dimension in CUBE_DIMENSIONS else (None, self.filters.start)
        )
        where, more = self.filters.sql()
        period = [self.filters.start.timestamp(), length]
        found: list[Statement] = []

        def add(sql: str, first: list[Any], buckets: str, values: list[Any]) -> None:
            text = sql.format(key=key, buckets=buckets, where=f"{where} AND {key} = ANY(%s::bigint[])")
            found.append((text, [*first, *values, *more, groups]))

        if cubes and is_long:
            add(LONG_WASTED_SQL, [*period, parts], *cubes)
        elif cubes:
            add(CUBE_WASTED_SQL, [parts, *period], *cubes)
        if start < self.filters.end:
            buckets, values = rollup_condition(Rollup.Resolution.HOUR, start, self.filters.end)
            if dimension == "workload":
                buckets, values = buckets + OF_WORKLOADS_SQL, [*values, groups]
            add(ROLLUP_WASTED_SQL, [parts, *period], buckets, values)
        return _run_together([found])[0]

    def holds(self, dimension: str) -> list[HeldInterval]:
        """Return the held intervals of the period by group."""
        if dimension not in self._holds:
            load_holds([(self, dimension)])
        return self._holds[dimension]

    def holds_any_dimension(self) -> list[HeldInterval]:
        """Return the held intervals, grouped by any dimension, for callers that add up all groups."""
        return self.holds(next(iter(self._holds), "pool"))

    def rollup_statements(self, dimension: str) -> list[Statement]:
        key, name = READ_DIMENSIONS[dimension]
        cubes, start = self._cubes() if dimension in CUBE_DIMENSIONS else (None, self.filters.start)
        found = [self._statement(CUBE_TOTALS_SQL, key, name, *cubes)] if cubes else []
        if start < self.filters.end:
            used = use_rows(start, self.filters.end, self.state.open_days, USAGE_SUMS)
            found.append(self._statement(ROLLUPS_SQL, key, name, *used))
        return found

    def hour_statements(self, dimension: str, days: bool) -> list[Statement]:
        key, _ = READ_DIMENSIONS[dimension]
        cubes, start = self._cubes(days=days) if dimension in CUBE_DIMENSIONS else (None, self.filters.start)
        found = []
        if cubes and dimension == "team" and not days and not self.filters.selects_work:
            period = [self.filters.start, min(self.filters.end, start)]
            found.append(self._statement(TEAM_HOURS_SQL, key, "", "c.bucket >= %s AND c.bucket < %s", period))
        elif cubes:
            found.append(self._statement(CUBE_HOURS_SQL, key, "", *cubes))
        if start < self.filters.end:
            buckets = rollup_condition(Rollup.Resolution.HOUR, start, self.filters.end)
            found.append(self._statement(HOURS_SQL, key, "", *buckets))
        return found

    def hold_statements(self, dimension: str) -> list[Statement]:
        period = [self.filters.start, self.filters.end]
        return [self._statement(HOLDS_SQL, *READ_DIMENSIONS[dimension], "", period)]

    def _statement(self, sql: str, key: str, name: str, buckets: str, values: list[Any]) -> Statement:
        where, more = self.filters.sql()
        return sql.format(key=key, name=name, buckets=buckets, where=where), [*values, *more]

    def keep_rollups(self, dimension: str, rows: list[tuple[Any, ...]]) -> None:
        found: dict[tuple[str, Any], dict[str, Any]] = {}
        for model, group, name, *sums in rows:
            row = dict(zip(USAGE_SUMS, sums, strict=True))
            # The hour in progress is a row of its own.
            if known := found.get((model, group)):
                row = {measure: _sum_known((known[measure], value)) for measure, value in row.items()}
            row["name"] = name
            found[model, group] = row
        self._rollups[dimension] = [(model, group, sums) for (model, group), sums in found.items()]

    def keep_hours(self, dimension: str, days: bool, rows: list[tuple[Any, ...]]) -> None:
        self._hours[dimension, days] = HourlyUsage.of_rows(rows)

    def keep_holds(self, dimension: str, rows: list[tuple[Any, ...]]) -> None:
        low, high = self.filters.start.timestamp(), self.filters.end.timestamp()
        self._holds[dimension] = [
            HeldInterval(
                group, label, max(start, low), high if end is None else min(end, high), slots, borrowed
            )
            for group, label, start, end, slots, borrowed in rows
        ]


Wanted = Sequence[tuple[UsageRows, str]]


def load_rollups(wanted: Wanted) -> None:
    """Load the rollups of each (rows, dimension) with one query for each type of their groups."""
    for some in _by_type(wanted):
        found = _run_together([rows.rollup_statements(dimension) for rows, dimension in some])
        for (rows, dimension), lines in zip(some, found, strict=True):
            rows.keep_rollups(dimension, lines)


def load_hours(wanted: Wanted, *, days: bool = False) -> None:
    """Load the hours of each (rows, dimension) with one query for each type of their groups."""
    for some in _by_type(wanted):
        found = _run_together([rows.hour_statements(dimension, days) for rows, dimension in some])
        for (rows, dimension), lines in zip(some, found, strict=True):
            rows.keep_hours(dimension, days, lines)


def load_holds(wanted: Wanted) -> None:
    """Load the holds of each (rows, dimension) with one query for each type of their groups."""
    for some in _by_type(wanted):
        found = _run_together([rows.hold_statements(dimension) for rows, dimension in some])
        for (rows, dimension), lines in zip(some, found, strict=True):
            rows.keep_holds(dimension, lines)


def load_charges(all_rows: Sequence[UsageRows]) -> None:
    """Load the charge lines of periods that are all long, or all short, with one query."""
    found = charge_sums([rows.filters for rows in all_rows], shared_dimensions(all_rows[0].filters))
    for rows, charges in zip(all_rows, found, strict=True):
        rows.charges = charges


def _by_type(wanted: Wanted) -> list[list[tuple[UsageRows, str]]]:
    """Return the wanted rows in two parts: those with numbers as groups, and those with texts."""
    numbers = [each for each in wanted if each[1] not in TEXT_DIMENSIONS]
    texts = [each for each in wanted if each[1] in TEXT_DIMENSIONS]
    return [some for some in (numbers, texts) if some]


def _run_together(parts: Sequence[Sequence[Statement]]) -> list[list[tuple[Any, ...]]]:
    """Return the rows of the statements of each part. Runs one query; none without a statement."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in parts]
    numbered = [(number, *each) for number, part in enumerate(parts) for each in part]
    if numbered:
        sql = " UNION ALL ".join(
            f"SELECT {number}, part.* FROM ({text}) part" for number, text, _ in numbered
        )
        with connection.cursor() as cursor:
            cursor.execute(sql, [value for _, _, values in numbered for value in values])
            for number, *row in cursor.fetchall():
                found[number].append(tuple(row))
    return found


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
