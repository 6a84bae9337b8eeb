"""Return the bytes of samples and rollups, and the bytes that their retention will take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection

from telemetry.models import Retention

# level: (tables, field of Retention)
LEVELS = {
    "samples": (
        ("telemetry_sample", "telemetry_runuse", "telemetry_hostuse", "telemetry_processuse"),
        "sample_days",
    ),
    "minutes": (("telemetry_rollupminutes",), "minute_days"),
    "hours": (("telemetry_rolluphours",), "hour_days"),
    "days": (("telemetry_rollupdays",), "day_days"),
}
_SIZES_SQL = """
SELECT parent.relname, sum(pg_total_relation_size(part.oid)),
    min(right(part.relname, 8)) FILTER (WHERE pg_relation_size(part.oid) > 0)
FROM pg_class AS parent JOIN pg_inherits AS child ON child.inhparent = parent.oid
JOIN pg_class AS part ON part.oid = child.inhrelid
WHERE parent.relname = ANY(%s) AND part.relname ~ '_[0-9]{8}$' GROUP BY 1
"""


@dataclass(frozen=True)
class StoredLevel:
    """The stored bytes of one level, and the bytes of its whole retention at the same rate.

    ``days`` is None if the level is kept without limit. ``expected`` is None without limit or without data.
    """

    level: str
    days: int | None
    stored: int
    expected: int | None


def stored_levels(now: datetime) -> list[StoredLevel]:
    """Return the levels from samples to days. The rate is the mean since the first stored partition."""
    retention = Retention.objects.filter(pk=1).first() or Retention()
    with connection.cursor() as cursor:
        cursor.execute(_SIZES_SQL, [[table for tables, _ in LEVELS.values() for table in tables]])
        sizes = {table: (int(size), first) for table, size, first in cursor.fetchall()}
    found = []
    for level, (tables, field) in LEVELS.items():
        size = sum(sizes[table][0] for table in tables if table in sizes)
        first = min((start for table in tables if (start := sizes.get(table, (0, None))[1])), default=None)
        days = getattr(retention, field)
        expected = None
        if days is not None and first is not None:
            since = datetime.strptime(first, "%Y%m%d").replace(tzinfo=UTC)
            expected = round(size / max(1.0, (now - since) / timedelta(days=1)) * days)
        found.append(StoredLevel(level, days, size, expected))
    return found
