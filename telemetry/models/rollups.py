"""Define the sums of usage per unit and time bucket, and the marks of buckets that are due."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Self

from django.db import models

from scheduler.models import Allocation, Host, Unit


class RollupQuerySet(models.QuerySet["Rollup"]):
    """Rollups of a period."""

    def within(self, resolution: int, start: datetime, end: datetime) -> Self:
        """Return the rollups of ``resolution`` whose bucket starts in ``[start, end)``.

        The condition on ``container`` lets PostgreSQL read only the stored rows of the period.
        """
        seconds = CONTAINER_SECONDS[resolution]
        at = int(start.timestamp())
        first = datetime.fromtimestamp(at - at % seconds, UTC)
        return self.filter(
            resolution=resolution,
            bucket__gte=start,
            bucket__lt=end,
            container__gte=first,
            container__lt=end,
        )


class Rollup(models.Model):
    """The usage of one unit by one allocation (or by nobody) in one time bucket.

    The rows are a view on arrays (``telemetry/rollups/storage.py``): filter by ``within`` where possible. A
    row has no averages: code that reads it derives averages from the sums. An hour or a day in which a unit
    was held has a row even if no sample arrived.
    """

    class Resolution(models.IntegerChoices):
        MINUTE = 60
        HOUR = 3600
        DAY = 86400

    resolution = models.PositiveIntegerField(choices=Resolution.choices)
    bucket = models.DateTimeField(help_text="start of the bucket")
    container = models.DateTimeField(help_text="start of the stored row, at or before the bucket")
    host = models.ForeignKey(Host, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    unit = models.ForeignKey(Unit, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    allocation = models.ForeignKey(
        Allocation, null=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+"
    )
    held_seconds = models.FloatField(help_text="seconds of the bucket in which the allocation held the unit")
    covered_seconds = models.FloatField(help_text="seconds of that time covered by samples")
    samples = models.PositiveIntegerField()
    utilisation_seconds = models.FloatField(null=True, help_text="sum of utilisation/100 x covered seconds")
    utilisation_max = models.FloatField(null=True)
    busy_seconds = models.FloatField(null=True, help_text="seconds with a utilisation of 5 % or more")
    inefficient_seconds = models.FloatField(
        null=True, help_text="busy seconds with little SM and little tensor activity"
    )
    sm_unmeasured_seconds = models.FloatField(
        null=True, help_text="busy seconds whose SM activity is unknown"
    )
    idle_seconds = models.FloatField(
        null=True, help_text="seconds with a process on the unit and a utilisation below 5 %"
    )
    empty_seconds = models.FloatField(null=True, help_text="seconds without any process on the unit")
    sm_active_seconds = models.FloatField(null=True)
    tensor_active_seconds = models.FloatField(null=True)
    memory_used_max_mib = models.IntegerField(null=True)
    energy_mj = models.BigIntegerField(null=True)
    energy_faults = models.IntegerField(
        null=True, help_text="intervals whose energy is unknown because of the counter"
    )
    utilisation_unknown_seconds = models.FloatField(
        null=True, help_text="covered seconds whose utilisation is unknown; empty: none"
    )
    sm_unknown_seconds = models.FloatField(
        null=True, help_text="covered seconds whose SM activity is unknown; empty: none"
    )
    simulated = models.BooleanField(default=False)

    objects = RollupQuerySet.as_manager()

    class Meta:
        managed = False
        db_table = "telemetry_rollup"


# By resolution of the buckets: the length in seconds of the stored row that contains them.
CONTAINER_SECONDS: dict[int, int] = {
    Rollup.Resolution.MINUTE: 3_600,
    Rollup.Resolution.HOUR: 86_400,
    Rollup.Resolution.DAY: 86_400,
}


class RollupDue(models.Model):
    """A mark that the samples of a host in one time bucket must be rolled up, for the first time or again.

    A minute is marked in the transaction that stores its samples. An hour is marked in the transaction that
    rolls up its minutes, and a day in the transaction that rolls up its hours.
    """

    resolution = models.PositiveIntegerField(choices=Rollup.Resolution.choices)
    bucket = models.DateTimeField()
    host = models.ForeignKey(Host, on_delete=models.CASCADE)
    marked_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["resolution", "bucket", "host"], name="a_bucket_is_due_once")
        ]


class EvidenceDue(models.Model):
    """A mark that the usage evidence of a host's charge lines in one hour must be computed again.

    The hour is marked in the transaction that writes its rollups.
    """

    host = models.ForeignKey(Host, on_delete=models.CASCADE)
    hour = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["hour", "host"], name="evidence_is_due_once")]
