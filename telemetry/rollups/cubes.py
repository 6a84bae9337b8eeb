"""Write the cubes of rollups: their sums by hour and by day over all GPUs.

A row has the sums of one pool, model, project, type of work and person, in slot-seconds. Pages with totals
over many GPUs read cubes. A cube is written when its hour is over, and again after a late sample. The cubes
of hours by team, and the version of each past day, are written with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import connection

from telemetry.models import Rollup
from telemetry.rollups.due_marks import bucket_start


def write_cubes(hours: Iterable[datetime], now: datetime) -> None:
    """Write the cubes of the hours that have ended, and of their days that have ended."""
    ended = sorted({hour for hour in hours if hour + timedelta(hours=1) <= now})
    if ended:
        with connection.cursor() as cursor:
            cursor.execute("SELECT telemetry_write_cubes(%s::timestamptz[], %s)", [ended, now])


def cube_periods(start: datetime, end: datetime, until: datetime) -> list[tuple[int, datetime, datetime]]:
    """Return (resolution, start, end) of the cubes that cover ``[start, end)`` up to ``until``.

    Whole days are read from the cubes of days, the rest from those of hours.
    """
    end = min(end, until)
    day = Rollup.Resolution.DAY
    first = bucket_start(start + timedelta(days=1) - timedelta(microseconds=1), day)
    last = bucket_start(min(end, bucket_start(until, day)), day)
    if first >= last:
        return [(int(Rollup.Resolution.HOUR), start, end)] if start < end else []
    parts = [(Rollup.Resolution.HOUR, start, first), (day, first, last), (Rollup.Resolution.HOUR, last, end)]
    return [(int(resolution), low, high) for resolution, low, high in parts if low < high]
