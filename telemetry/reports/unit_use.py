"""Read the use of units by allocations. This is the only module of the reports that reads rollups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime

from telemetry.core.rollup import UsageSums
from telemetry.core.run_report import BucketUse
from telemetry.models import Rollup
from telemetry.rollups.due_marks import bucket_start
from telemetry.rollups.storage import ROLLUP_MEASURES

MINUTE, HOUR = int(Rollup.Resolution.MINUTE), int(Rollup.Resolution.HOUR)


def unit_use(
    allocations: Collection[int], resolution: int, start: datetime, end: datetime
) -> dict[int, list[BucketUse]]:
    """Return the use in minutes or hours by unit id, in order of time. Runs one query.

    The buckets begin before ``end``. The first one contains ``start``.

    Minutes that are older than their retention are absent.
    """
    rows = Rollup.objects.within(resolution, bucket_start(start, resolution), end)
    rows = rows.filter(allocation__in=list(allocations))
    found: dict[int, list[BucketUse]] = defaultdict(list)
    for unit, bucket, *values in rows.order_by("bucket").values_list("unit_id", "bucket", *ROLLUP_MEASURES):
        sums = UsageSums(**dict(zip(ROLLUP_MEASURES, values, strict=True)))
        found[unit].append((int(bucket.timestamp()), sums))
    return found
