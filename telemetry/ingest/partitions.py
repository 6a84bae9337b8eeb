"""Create daily partitions of the sample table ahead of time, and drop expired partitions.

Database functions do the work.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import connection

from telemetry.dcgm import scrapes
from telemetry.ingest.watermarks import prune_batches
from telemetry.models import Retention, Rollup, RollupDue
from telemetry.readings.faults import prune_faults

PARTITION_DAYS_AHEAD = 3


def maintain_partitions(now: datetime) -> tuple[int, int]:
    """Create partitions from yesterday to PARTITION_DAYS_AHEAD days after today, and drop expired partitions.

    Also creates and drops the partitions of rollups and of the use of runs and hosts, drops expired packed
    samples, and deletes old Batch rows, old counts of faults and old values of dcgm-exporter. Returns the
    number of created and the number of dropped partitions of samples.
    """
    retention = Retention.objects.filter(pk=1).first() or Retention()
    today = now.astimezone(UTC).date()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT telemetry_make_partitions(%s, %s)", [today - timedelta(days=1), PARTITION_DAYS_AHEAD + 2]
        )
        made = int(cursor.fetchone()[0])
        oldest = _oldest_kept_day(now, retention.sample_days).date()
        cursor.execute("SELECT telemetry_drop_samples_before(%s)", [oldest])
        dropped = int(cursor.fetchone()[0])
        cursor.execute(
            "SELECT telemetry_make_usage_partitions(%s, %s), telemetry_drop_usage_before(%s),"
            " telemetry_drop_packed_before(%s)",
            [today - timedelta(days=1), PARTITION_DAYS_AHEAD + 2, oldest, oldest],
        )
        for resolution, days in (
            (Rollup.Resolution.MINUTE, retention.minute_days),
            (Rollup.Resolution.HOUR, retention.hour_days),
            (Rollup.Resolution.DAY, retention.day_days),
        ):
            if days is not None:
                cursor.execute(
                    "SELECT telemetry_drop_rollups_before(%s, %s)",
                    [int(resolution), now - timedelta(days=days)],
                )
        # Rollups are packed when their hour or day is over. If their partition exists by then, no lock on the
        # whole table is needed.
        for resolution in Rollup.Resolution:
            for day in range(PARTITION_DAYS_AHEAD + 1):
                cursor.execute(
                    "SELECT telemetry_make_rollup_partition(%s, %s)",
                    [int(resolution), now + timedelta(days=day)],
                )
    prune_batches(now)
    prune_faults(now, days=retention.minute_days)
    scrapes.prune(now, slow_days=retention.minute_days)
    return made, dropped


def _oldest_kept_day(now: datetime, days: int) -> datetime:
    """Return the time before which samples may be dropped.

    Samples of buckets that must still be rolled up are always kept.
    """
    oldest = now.astimezone(UTC) - timedelta(days=days)
    due = RollupDue.objects.order_by("bucket").values_list("bucket", flat=True).first()
    return oldest if due is None else min(oldest, due - timedelta(days=1))
