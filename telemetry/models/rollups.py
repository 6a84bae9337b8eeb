"""Define the sums of usage per unit and time bucket."""

from __future__ import annotations

from django.db import models

from scheduler.models import Allocation, Host, Unit


class Rollup(models.Model):
    """The usage of one unit by one allocation (or by nobody) in one time bucket.

    After a late sample, the whole row is written again. The row has no averages: code that reads it derives
    averages from the sums. An hour or a day in which a unit was held has a row even if no sample arrived.
    """

    class Resolution(models.IntegerChoices):
        MINUTE = 60
        HOUR = 3600
        DAY = 86400

    resolution = models.PositiveIntegerField(choices=Resolution.choices)
    bucket = models.DateTimeField(help_text="start of the bucket")
    unit = models.ForeignKey(Unit, on_delete=models.PROTECT, related_name="+")
    allocation = models.ForeignKey(Allocation, null=True, on_delete=models.PROTECT, related_name="+")
    held_seconds = models.FloatField(help_text="seconds of the bucket in which the allocation held the unit")
    covered_seconds = models.FloatField(help_text="seconds of that time covered by samples")
    samples = models.PositiveIntegerField()
    utilisation_seconds = models.FloatField(null=True, help_text="sum of utilisation/100 x covered seconds")
    utilisation_max = models.FloatField(null=True)
    busy_seconds = models.FloatField(null=True, help_text="seconds with utilisation above zero")
    inefficient_seconds = models.FloatField(
        null=True, help_text="busy seconds with little SM activity; empty: not measured"
    )
    idle_seconds = models.FloatField(
        null=True, help_text="seconds with a process on the unit but without activity"
    )
    empty_seconds = models.FloatField(null=True, help_text="seconds without any process on the unit")
    sm_active_seconds = models.FloatField(null=True)
    tensor_active_seconds = models.FloatField(null=True)
    memory_used_max_mib = models.IntegerField(null=True)
    energy_mj = models.BigIntegerField(null=True)
    simulated = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["resolution", "bucket", "unit", "allocation"],
                name="one_rollup_per_bucket_unit_and_allocation",
                nulls_distinct=False,
            )
        ]
        indexes = [models.Index(fields=["allocation", "resolution", "bucket"])]


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
