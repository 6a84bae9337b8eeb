"""Define sample batches, samples, and the retention of samples and rollups."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from scheduler.models import Host, Unit


class Batch(models.Model):
    """A received batch of samples. Its row is inserted once, in the same transaction as its samples."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="batches")
    sequence = models.BigIntegerField()
    rows = models.PositiveIntegerField()
    rejected_rows = models.PositiveIntegerField(default=0)
    received_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "sequence"], name="a_batch_lands_once")]


class SampleWatermark(models.Model):
    """The sequence number up to which all batches of a host are stored.

    The agent of the host may delete its copies of these batches.
    """

    host = models.OneToOneField(Host, primary_key=True, on_delete=models.CASCADE)
    sequence = models.BigIntegerField(default=0)


class Sample(models.Model):
    """One reading of one unit, in a table partitioned by day. NULL means unknown, never zero.

    Rows are written by COPY only (``telemetry/ingest/binary_copy.py``). The index on (unit, ts) is not
    unique.
    """

    pk = models.CompositePrimaryKey("unit", "ts")
    unit = models.ForeignKey(Unit, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    ts = models.DateTimeField()
    allocation_id = models.BigIntegerField(null=True)
    utilisation = models.FloatField(null=True)
    sm_active = models.FloatField(null=True)
    tensor_active = models.FloatField(null=True)
    memory_used_mib = models.IntegerField(null=True)
    memory_utilisation = models.FloatField(null=True)
    power_w = models.FloatField(null=True)
    energy_mj = models.BigIntegerField(null=True)
    temperature_c = models.FloatField(null=True)
    memory_temperature_c = models.FloatField(null=True)
    sm_clock_mhz = models.IntegerField(null=True)
    throttle_reasons = models.BigIntegerField(null=True)
    pcie_rx_kib = models.BigIntegerField(null=True)
    pcie_tx_kib = models.BigIntegerField(null=True)
    nvlink_kib = models.BigIntegerField(null=True)
    processes = models.IntegerField(null=True)
    stray_processes = models.IntegerField(null=True)

    class Meta:
        managed = False
        db_table = "telemetry_sample"


class Retention(models.Model):
    """The retention periods in days, in a single row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    sample_days = models.PositiveSmallIntegerField(default=14, help_text="days of raw samples that are kept")
    minute_days = models.PositiveSmallIntegerField(
        default=30, help_text="days of minute rollups that are kept; hours and days are kept permanently"
    )

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(id=1), name="there_is_one_retention_row"),
            models.CheckConstraint(
                condition=Q(sample_days__gte=2) & Q(minute_days__gte=2), name="at_least_two_days_are_kept"
            ),
        ]
