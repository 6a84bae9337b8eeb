"""Count the readings of hosts that could not be stored as they arrived, by day, source and reading."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection

from telemetry.models import ReadingFault

# Rows are inserted in the order of their key, so that concurrent transactions lock them in the same order.
_COUNT_SQL = """
INSERT INTO telemetry_readingfault AS fault
    (host_id, day, source, reading, kind, count, last_at, last_value)
SELECT host.id, given.day,
    CASE WHEN given.source <> '' THEN given.source WHEN host.simulated THEN 'simulated' ELSE 'nvml' END,
    given.reading, given.kind, given.count, given.last_at, given.last_value
FROM unnest(%s::bigint[], %s::date[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::timestamptz[],
    %s::float8[]) AS given (host, day, source, reading, kind, count, last_at, last_value)
JOIN scheduler_host AS host ON host.id = given.host
ORDER BY host.id, given.day, given.source, given.reading, given.kind
ON CONFLICT (host_id, day, source, reading, kind) DO UPDATE SET
    count = fault.count + excluded.count,
    last_at = greatest(fault.last_at, excluded.last_at),
    last_value = CASE WHEN excluded.last_at >= fault.last_at THEN excluded.last_value
        ELSE fault.last_value END
"""


@dataclass(frozen=True, slots=True)
class FaultCount:
    """A number of faults to add, and the last of them. ``count`` is negative if faults were corrected.

    ``last_value`` is the reading as it arrived; None if it is unknown or not finite. ``source`` is a value of
    ReadingFault.Source; empty: the agent of the host.
    """

    host: int
    reading: str
    kind: str
    count: int
    last_at: datetime
    last_value: float | None = None
    source: str = ""


def count_faults(faults: Iterable[FaultCount]) -> None:
    """Add the counts to the rows of the days of ``last_at`` (UTC). Runs at most one statement."""
    sums: dict[tuple[int, str, str, str, str], FaultCount] = {}
    for fault in faults:
        day = fault.last_at.astimezone(UTC).date().isoformat()
        key = (fault.host, day, fault.source, fault.reading, fault.kind)
        known = sums.get(key)
        last = fault if known is None or fault.last_at >= known.last_at else known
        total = fault.count + (known.count if known else 0)
        sums[key] = dataclasses.replace(last, count=total)
    rows = [
        (host, day, source, reading, kind, fault.count, fault.last_at, _finite(fault.last_value))
        for (host, day, source, reading, kind), fault in sorted(sums.items())
        if fault.count
    ]
    if rows:
        with connection.cursor() as cursor:
            cursor.execute(_COUNT_SQL, [list(column) for column in zip(*rows, strict=True)])


def prune_faults(now: datetime, *, days: int) -> None:
    """Delete the counts of days that are older than ``days``."""
    oldest = (now.astimezone(UTC) - timedelta(days=days)).date()
    ReadingFault.objects.filter(day__lt=oldest)._raw_delete(using="default")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
