"""Choose the stored rollups that a query reads: those of whole days, and those of hours for the rest.

A unit has one row for each day and allocation, and 24 times as many for its hours. The rollups of a day are
final unless one of its hours is still open or the day is due.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from telemetry.models import Rollup
from telemetry.rollups.due_marks import bucket_start
from telemetry.rollups.storage import MICRO_MEASURES, rollup_condition

DAY = timedelta(days=1)
DAY_SECONDS = int(Rollup.Resolution.DAY)
_STATE_SQL = """
SELECT (SELECT max(bucket) + interval '1 hour' FROM telemetry_rollupcube WHERE resolution = 3600),
    ARRAY(SELECT date_trunc('day', bucket, 'UTC') FROM telemetry_rollupopen WHERE resolution >= 3600
        UNION SELECT bucket FROM telemetry_rollupdue WHERE resolution = 86400),
    ARRAY(SELECT day FROM telemetry_rollupversion WHERE day > %(start)s AND day < %(end)s ORDER BY day),
    ARRAY(SELECT version FROM telemetry_rollupversion WHERE day > %(start)s AND day < %(end)s ORDER BY day)
"""


@dataclass(frozen=True)
class RollupState:
    """The rollups that are complete.

    ``cubes_until`` is the end of the last hour with a cube; None without cubes. ``open_days`` are the starts
    of the days (UTC) whose rollups of days are not final. ``versions`` has the version of each past day that
    touches the period; it changes when the rollups of the day change.
    """

    cubes_until: datetime | None
    open_days: frozenset[datetime] = frozenset()
    versions: dict[datetime, int] = field(default_factory=dict)


def rollup_state(start: datetime, end: datetime) -> RollupState:
    """Return the state of the rollups, with the versions of the days that touch ``[start, end)``.

    Runs one query.
    """
    with connection.cursor() as cursor:
        cursor.execute(_STATE_SQL, {"start": start - DAY, "end": end})
        until, open_days, days, versions = cursor.fetchone()
    return RollupState(
        until,
        frozenset(day.astimezone(UTC) for day in open_days),
        {day.astimezone(UTC): version for day, version in zip(days, versions, strict=True)},
    )


def use_rows(
    start: datetime, end: datetime, open_days: Collection[datetime], measures: Collection[str]
) -> tuple[str, list[Any]]:
    """Return a subquery, and its parameters, of the use of all units in ``[start, end)``.

    Its rows have ``allocation_id``, ``unit_id`` and ``measures``. A row is about a day or an hour.
    """
    first, last = _whole_days(start, end)
    parts: list[str] = []
    values: list[Any] = []
    if first < last:
        columns = ", ".join(
            f"{name}[1] / 1e6::float8 AS {name}" if name in MICRO_MEASURES else f"{name}[1] AS {name}"
            for name in measures
        )
        parts.append(
            f"SELECT allocation_id, unit_id, {columns} FROM telemetry_rollupdays"
            " WHERE container >= %s AND container < %s AND NOT container = ANY(%s::timestamptz[])"
        )
        values += [first, last, sorted(day for day in open_days if first <= day < last)]
    # With one condition for all periods, PostgreSQL would expand the arrays of every day.
    for low, high in _hour_periods(start, end, open_days):
        condition, more = rollup_condition(Rollup.Resolution.HOUR, low, high)
        parts.append(
            f"SELECT allocation_id, unit_id, {', '.join(measures)} FROM telemetry_rollup WHERE {condition}"
        )
        values += more
    return f"({' UNION ALL '.join(parts)})", values


def _whole_days(start: datetime, end: datetime) -> tuple[datetime, datetime]:
    """Return the start of the first and the end of the last whole day (UTC) of the period."""
    almost_a_day = DAY - timedelta(microseconds=1)
    return bucket_start(start + almost_a_day, DAY_SECONDS), bucket_start(end, DAY_SECONDS)


def _hour_periods(
    start: datetime, end: datetime, open_days: Collection[datetime]
) -> list[tuple[datetime, datetime]]:
    """Return the parts of the period that are read from hours: its edges, and its open days."""
    first, last = _whole_days(start, end)
    if first >= last:
        return [(start, end)]
    parts = [(start, first), *((day, day + DAY) for day in sorted(open_days) if first <= day < last)]
    joined: list[tuple[datetime, datetime]] = []
    for low, high in [*parts, (last, end)]:
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return [(low, high) for low, high in joined if low < high]
