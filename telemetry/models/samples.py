"""Define sample batches, samples, and the retention of samples and rollups."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from scheduler.models import Host, Unit


class Batch(models.Model):
    """A received batch of samples. Its row is inserted once, in the same transaction as its samples."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="batches")
    sequence = models.BigIntegerField()
    rows = models.PositiveIntegerField()
    rejected_rows = models.PositiveIntegerField(default=0)
    received_at = models.DateTimeField()
    first_sample = models.DateTimeField(null=True, help_text="time of its first valid sample")
    last_sample = models.DateTimeField(null=True, help_text="time of its last valid sample")
    refused_until = models.DateTimeField(
        null=True, help_text="true time of the last sample that was refused for a wrong clock"
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "sequence"], name="a_batch_lands_once")]


class SampleWatermark(models.Model):
    """The sequence number up to which all batches of a host are stored.

    The agent of the host may delete its copies of these batches.
    """

    host = models.OneToOneField(Host, primary_key=True, on_delete=models.CASCADE)
    sequence = models.BigIntegerField(default=0)
    sampled_until = models.DateTimeField(
        null=True, help_text="time of the newest sample up to which no batch is awaited"
    )
    agent_instance = models.CharField(
        max_length=64, default="", help_text="installation of the agent that sent the last of these batches"
    )


class SampleGap(models.Model):
    """An interval in which the samples of a host are lost. Nothing waits for these samples any more.

    The interval lies between the last sample before the gap and the first sample after it. If a lost batch
    arrives after all, it is stored, and the gap becomes shorter.
    """

    class Cause(models.TextChoices):
        SKIPPED = "skipped", "batches were missing for too long"
        REINSTALLED = "reinstalled", "the agent was installed again, without its spool"
        REMOVED = "removed", "the host was removed"
        CLOCK = "clock", "the clock of the host was too wrong"

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="sample_gaps")
    cause = models.CharField(max_length=12, choices=Cause.choices)
    first_sequence = models.BigIntegerField(null=True, help_text="first missing batch; empty: not numbered")
    last_sequence = models.BigIntegerField(null=True)
    start = models.DateTimeField()
    end = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["host", "end"], name="gaps_of_a_host")]
        constraints = [
            models.CheckConstraint(condition=Q(end__gte=F("start")), name="a_sample_gap_ends_after_its_start")
        ]


class HostHour(models.Model):
    """The state of a host's samples in one hour. There are rows only for hours with a held unit.

    ``lost_seconds`` is the part of the hour that lies in sample gaps.
    """

    class State(models.TextChoices):
        COMPLETE = "complete", "every sample has arrived"
        WAITING = "waiting", "waiting for the spool of its agent"
        LOST = "lost", "samples are lost"

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="sample_hours")
    hour = models.DateTimeField(help_text="start of the hour")
    state = models.CharField(max_length=8, choices=State.choices, default=State.WAITING)
    lost_seconds = models.FloatField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "hour"], name="one_state_per_host_and_hour")]
        indexes = [
            models.Index(fields=["host", "hour"], condition=Q(state="waiting"), name="waiting_host_hours")
        ]


HOST_HOUR_TRANSITIONS: dict[str, frozenset[str]] = {
    HostHour.State.WAITING: frozenset({HostHour.State.COMPLETE, HostHour.State.LOST}),
    HostHour.State.LOST: frozenset({HostHour.State.COMPLETE}),  # a skipped batch arrived after all
    HostHour.State.COMPLETE: frozenset(),
}


class HostHoursRecorded(models.Model):
    """A single row: the time up to which HostHour rows were created."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    until = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(id=1), name="there_is_one_row_of_recorded_host_hours")
        ]


SAMPLE_BIN = "5 minutes"  # as in the index telemetry_sample_unit_bin


def sample_bins(ts: str, start: str, end: str) -> str:
    """Return the SQL condition that PostgreSQL needs to find the samples of a unit in a period.

    Use it together with the exact condition on the time. The index of samples has the unit and the five
    minutes that contain the sample. Entries with one key share it, which takes a third of the space.
    """
    of_ts, first, last = (f"date_bin('{SAMPLE_BIN}', {at}, 'epoch')" for at in (ts, start, end))
    return f"{of_ts} BETWEEN {first} AND {last}"


class Sample(models.Model):
    """One reading of one unit, in a table partitioned by day. NULL means unknown, never zero.

    Rows are written by COPY only (``telemetry/ingest/binary_copy.py``). Percentages, watts and degrees are
    single-precision numbers of 4 bytes: seven significant digits. Queries by unit use ``sample_bins``.
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
    throttle_reasons = models.IntegerField(null=True)
    pcie_rx_kib = models.IntegerField(null=True)
    pcie_tx_kib = models.IntegerField(null=True)
    nvlink_kib = models.BigIntegerField(null=True)
    processes = models.IntegerField(null=True)
    stray_processes = models.IntegerField(null=True)
    graphics_active = models.FloatField(null=True)
    sm_occupancy = models.FloatField(null=True)
    dram_active = models.FloatField(null=True)
    fp64_active = models.FloatField(null=True)
    fp32_active = models.FloatField(null=True)
    fp16_active = models.FloatField(null=True)
    encoder_utilisation = models.FloatField(null=True)
    decoder_utilisation = models.FloatField(null=True)
    fan_percent = models.FloatField(null=True)
    power_limit_w = models.FloatField(null=True)
    memory_clock_mhz = models.IntegerField(null=True)
    video_clock_mhz = models.IntegerField(null=True)
    # Bit i is set if reading i is from dcgm-exporter, in the order of the columns above; NULL: none is.
    dcgm_readings = models.BigIntegerField(null=True)
    # Counters of a whole GPU, once a minute. ``telemetry.core.counters`` computes their growth.
    pcie_rx_bytes = models.BigIntegerField(null=True)
    pcie_tx_bytes = models.BigIntegerField(null=True)
    nvlink_rx_bytes = models.BigIntegerField(null=True)
    nvlink_tx_bytes = models.BigIntegerField(null=True)

    class Meta:
        managed = False
        db_table = "telemetry_sample"


class Retention(models.Model):
    """A single row: the retention periods in days."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    sample_days = models.PositiveSmallIntegerField(default=14, help_text="days of raw samples that are kept")
    minute_days = models.PositiveSmallIntegerField(
        default=30, help_text="days of minute rollups that are kept"
    )
    hour_days = models.PositiveSmallIntegerField(
        null=True, help_text="days of hour rollups that are kept; empty: without limit"
    )
    day_days = models.PositiveSmallIntegerField(
        null=True, help_text="days of day rollups that are kept; empty: without limit"
    )

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(id=1), name="there_is_one_retention_row"),
            models.CheckConstraint(
                condition=Q(sample_days__gte=2) & Q(minute_days__gte=2), name="at_least_two_days_are_kept"
            ),
            # A late sample is added to its minute, and the hour is merged from all its minutes. So the
            # minutes must be kept for longer than the time in which late samples are accepted.
            models.CheckConstraint(
                condition=Q(minute_days__gte=F("sample_days") + 1),
                name="minutes_are_kept_longer_than_samples",
            ),
            models.CheckConstraint(
                condition=Q(hour_days=None) | Q(hour_days__gte=F("minute_days")),
                name="hours_are_kept_as_long_as_minutes",
            ),
            models.CheckConstraint(
                condition=Q(day_days=None) | Q(hour_days__isnull=False, day_days__gte=F("hour_days")),
                name="days_are_kept_as_long_as_hours",
            ),
        ]
