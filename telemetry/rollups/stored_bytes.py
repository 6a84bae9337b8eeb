"""Return the bytes of samples, rollups and cubes, and the bytes that a retention will take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection

from telemetry.models import Retention

# level: (tables, field of Retention). Cubes are always kept.
LEVELS: Mapping[str, tuple[tuple[str, ...], str | None]] = {
    "samples": (
        (
            "telemetry_sample",
            "telemetry_packedsamples",
            "telemetry_runuse",
            "telemetry_hostuse",
            "telemetry_processuse",
        ),
        "sample_days",
    ),
    "minutes": (("telemetry_rollupminutes",), "minute_days"),
    "hours": (("telemetry_rolluphours",), "hour_days"),
    "days": (("telemetry_rollupdays",), "day_days"),
    "cubes": (("telemetry_rollupcube",), None),
}
RETENTION_FIELDS = tuple(field for _, field in LEVELS.values() if field is not None)
_SIZES_SQL = """
SELECT parent.relname, sum(pg_total_relation_size(part.oid)),
    to_date(min(right(part.relname, 8)) FILTER (WHERE pg_relation_size(part.oid) > 0), 'YYYYMMDD')
FROM pg_class AS parent JOIN pg_inherits AS child ON child.inhparent = parent.oid
JOIN pg_class AS part ON part.oid = child.inhrelid
WHERE parent.relname = ANY(%s) AND part.relname ~ '_[0-9]{8}$' GROUP BY 1
UNION ALL
SELECT 'telemetry_rollupcube', pg_total_relation_size('telemetry_rollupcube'),
    (SELECT (min(bucket) AT TIME ZONE 'UTC')::date FROM telemetry_rollupcube WHERE resolution = 3600)
"""


@dataclass(frozen=True)
class StoredLevel:
    """The stored bytes of one level. ``days`` is None if the level is kept without limit.

    ``daily`` is the mean number of bytes of a day since the first stored one; None without data.
    """

    level: str
    days: int | None
    stored: int
    daily: float | None

    @property
    def expected(self) -> int | None:
        """Return the bytes of the whole retention; None without limit or without data."""
        return self.expected_of(self.days)

    def expected_of(self, days: int | None) -> int | None:
        """Return the bytes of so many days at the same rate; None without limit or without data."""
        return None if days is None or self.daily is None else round(self.daily * days)


def present_retention() -> Retention:
    """Return the row of the retention, or its defaults if it does not exist."""
    return Retention.objects.filter(pk=1).first() or Retention()


def stored_levels(now: datetime) -> list[StoredLevel]:
    """Return the levels from samples to cubes."""
    retention = present_retention()
    with connection.cursor() as cursor:
        cursor.execute(_SIZES_SQL, [[table for tables, _ in LEVELS.values() for table in tables]])
        sizes = {table: (int(size), first) for table, size, first in cursor.fetchall()}
    found = []
    for level, (tables, field) in LEVELS.items():
        stored = [sizes[table] for table in tables if table in sizes]
        size = sum(bytes_of_table for bytes_of_table, _ in stored)
        firsts = [first for _, first in stored if first is not None]
        daily = None
        if firsts:
            since = datetime.combine(min(firsts), datetime.min.time(), UTC)
            daily = size / max(1.0, (now - since) / timedelta(days=1))
        found.append(StoredLevel(level, getattr(retention, field) if field else None, size, daily))
    return found
