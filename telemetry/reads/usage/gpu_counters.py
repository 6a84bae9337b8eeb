"""Return the counters and flags of a host's GPUs: the last value of each, and their series."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from django.db import connection

from scheduler.models import Host
from telemetry.models import SlowReading

MAX_POINTS = 600
# The last change of each step, and the last one before the period: a value holds until it changes. The unique
# index of the readings finds the rows of each GPU.
_SERIES_SQL = """
SELECT DISTINCT ON (gpu.index, changed.reading, changed.source, changed.step)
    gpu.index, gpu.uuid, changed.reading, changed.source, changed.at, changed.value
FROM scheduler_gpu AS gpu
CROSS JOIN LATERAL (
    SELECT slow.*, greatest(-1, floor((extract(epoch FROM slow.at) - %(first)s) / %(step)s)) AS step
    FROM telemetry_slowreading AS slow
    WHERE slow.gpu_id = gpu.id AND slow.at < %(end)s AND (%(reading)s = '' OR slow.reading = %(reading)s)
) AS changed
WHERE gpu.host_id = %(host)s AND gpu.retired_at IS NULL
ORDER BY gpu.index, changed.reading, changed.source, changed.step, changed.at DESC
"""


@dataclass(frozen=True)
class CounterSeries:
    """The changes of a counter of one GPU, from one source. ``points`` are (time, value)."""

    gpu: int  # index
    uuid: str
    reading: str
    source: str
    points: list[tuple[datetime, int]]


@dataclass(frozen=True)
class GpuCounter:
    """The last value of a counter of one GPU. ``since`` is the time at which it got this value."""

    gpu: int  # index
    reading: str
    value: int
    source: str
    since: datetime


def gpu_counters(host: Host) -> list[GpuCounter]:
    """Return the counters that are not 0, by GPU and reading. Runs one query.

    If two sources know a counter, the one that changed last counts.
    """
    rows = (
        SlowReading.objects.filter(gpu__host=host, gpu__retired_at=None)
        .order_by("gpu__index", "gpu", "reading", "-at", "-pk")
        .distinct("gpu__index", "gpu", "reading")
        .values_list("gpu__index", "reading", "value", "source", "at")
    )
    return [GpuCounter(*row) for row in rows if row[2]]


def counter_series(host: Host, start: datetime, end: datetime, reading: str = "") -> list[CounterSeries]:
    """Return the changes in ``[start, end)`` of the counters of a host's GPUs, or of one of them.

    The first point may be a change before ``start``, because its value holds at ``start``. Of many changes,
    the last one in each of MAX_POINTS equal steps is returned. Runs one query.
    """
    first, last = start.timestamp(), end.timestamp()
    values: dict[str, Any] = {"host": host.pk, "end": end, "reading": reading, "first": first}
    values["step"] = (last - first) / MAX_POINTS
    with connection.cursor() as cursor:
        cursor.execute(_SERIES_SQL, values)
        rows = cursor.fetchall()
    return [
        CounterSeries(gpu, uuid, name, source, [(at.astimezone(UTC), value) for *_, at, value in changes])
        for (gpu, uuid, name, source), changes in groupby(rows, key=lambda row: row[:4])
    ]
