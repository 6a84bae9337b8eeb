"""Daily partitions of the samples: made ahead of time, dropped when their days are over. Two database functions do the work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import connection

from telemetry.ingest.watermarks import prune_batches
from telemetry.models import Retention, Rollup, RollupDue

PARTITION_DAYS_AHEAD = 3


def maintain_partitions(now: datetime) -> tuple[int, int]:
    """Make the partitions of yesterday to three days ahead, drop the days beyond the retention; how many of each."""
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
    """A day that still has to be rolled up is kept, however old it is."""
    oldest = now.astimezone(UTC) - timedelta(days=days)
    due = RollupDue.objects.order_by("bucket").values_list("bucket", flat=True).first()
    return oldest if due is None else min(oldest, due - timedelta(days=1))
