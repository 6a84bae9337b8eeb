"""Store counters and flags of GPUs with one row for each change, because they seldom change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from telemetry.dcgm.fields import THROTTLE_INTERVAL_SECONDS
from telemetry.models import SlowReading

# A counter that has grown is stored at most once in ``every`` seconds. A counter that has fallen (a reset) is
# stored at once.
_STORE_SQL = """
WITH known AS (
    SELECT given.*, last.value AS before, last.at AS before_at
    FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::float8[])
        AS given (gpu_id, reading, value, every)
    LEFT JOIN LATERAL (
        SELECT value, at FROM telemetry_slowreading AS stored
        WHERE stored.gpu_id = given.gpu_id AND stored.reading = given.reading AND stored.source = %s
            AND stored.at <= %s
        ORDER BY at DESC LIMIT 1
    ) AS last ON true
), stored AS (
    INSERT INTO telemetry_slowreading (gpu_id, reading, source, at, value)
    SELECT gpu_id, reading, %s, %s, value FROM known
    WHERE before IS NULL OR value < before
        OR (value > before AND before_at <= %s - every * interval '1 second')
    ORDER BY gpu_id, reading
    ON CONFLICT DO NOTHING
    RETURNING gpu_id, reading, value
)
SELECT stored.gpu_id, stored.reading, known.before, stored.value
FROM stored JOIN known USING (gpu_id, reading)
ORDER BY stored.gpu_id, stored.reading
"""
_PRUNE_SQL = """
DELETE FROM telemetry_slowreading AS old
WHERE old.at < %s AND EXISTS (
    SELECT 1 FROM telemetry_slowreading AS newer
    WHERE newer.gpu_id = old.gpu_id AND newer.reading = old.reading AND newer.source = old.source
        AND newer.at > old.at AND newer.at < %s
)
"""


@dataclass(frozen=True, slots=True)
class SlowChange:
    """A change that was stored. ``before`` is None if the reading was not known before."""

    gpu: int
    reading: str
    before: int | None
    value: int


def store_changes(
    readings: Mapping[int, Mapping[str, int]], at: datetime, source: str = SlowReading.Source.DCGM
) -> list[SlowChange]:
    """Store the readings that changed, by GPU id and reading, and return the changes.

    Readings that arrive late are compared with the last ones before them.
    """
    rows = [
        (gpu, name, value, THROTTLE_INTERVAL_SECONDS if name.endswith("_ns") else 0)
        for gpu, values in sorted(readings.items())
        for name, value in sorted(values.items())
    ]
    if not rows:
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            _STORE_SQL, [*(list(column) for column in zip(*rows, strict=True)), source, at, source, at, at]
        )
        return [SlowChange(*row) for row in cursor.fetchall()]


def prune(before: datetime) -> None:
    """Delete the changes before a time, except the last change of each reading before it."""
    with connection.cursor() as cursor:
        cursor.execute(_PRUNE_SQL, [before, before])
