"""Create daily partitions of the sample table ahead of time, and drop expired partitions.

Two database functions do the work.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import connection

from telemetry.ingest.watermarks import prune_batches
from telemetry.models import Retention, Rollup, RollupDue

PARTITION_DAYS_AHEAD = 3


def maintain_partitions(now: datetime) -> tuple[int, int]:
    """Create partitions from yesterday to PARTITION_DAYS_AHEAD days after today, and drop expired partitions.

    Also deletes expired minute rollups and old Batch rows. Returns the number of created partitions and the
    number of dropped partitions.
    """
    retention = Retention.objects.filter(pk=1).first() or Retention()
    today = now.astimezone(UTC).date()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT telemetry_make_partitions(%s, %s)", [today - timedelta(days=1), PARTITION_DAYS_AHEAD + 2]
        )
        made = int(cursor.fetchone()[0])
        cursor.execute(
            "SELECT telemetry_drop_samples_before(%s)", [_oldest_kept_day(now, retention.sample_days).date()]
        )
        dropped = int(cursor.fetchone()[0])
    oldest_minute = now - timedelta(days=retention.minute_days)
    Rollup.objects.filter(resolution=Rollup.Resolution.MINUTE, bucket__lt=oldest_minute)._raw_delete(
        using="default"
    )
    prune_batches(now)
    return made, dropped


def _oldest_kept_day(now: datetime, days: int) -> datetime:
    """Return the time before which samples may be dropped.

    Samples of buckets that must still be rolled up are always kept.
    """
    oldest = now.astimezone(UTC) - timedelta(days=days)
    due = RollupDue.objects.order_by("bucket").values_list("bucket", flat=True).first()
    return oldest if due is None else min(oldest, due - timedelta(days=1))
