"""Define the counts of readings that could not be stored, dcgm-exporters, and readings that seldom change.

RunUse, HostUse and ProcessUse have a row a minute, written in the transaction of its batch
(``telemetry/ingest/usage_rows.py``). Their tables are partitioned by day and dropped with the samples of the
day. NULL means not measured, never zero. Counters are stored as they are read; ``telemetry.core.counters``
computes their growth.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from scheduler.models import Gpu, Host, Run, Unit


class ReadingSource(models.TextChoices):
    """The source of a reading of a GPU."""

    NVML = "nvml", "NVML"
    SIMULATED = "simulated", "simulated"
    DCGM = "dcgm", "dcgm-exporter"


class ReadingFault(models.Model):
    """The number of faults of one reading of a host's GPUs on one day (UTC).

    ``reading`` is a column of Sample or a SlowReading. ``ts`` stands for the time of the sample, ``line`` and
    ``gpu`` for a line and a GPU in the answer of dcgm-exporter.
    """

    Source = ReadingSource

    class Kind(models.TextChoices):
        OUT_OF_BOUNDS = "out_of_bounds", "impossible value: stored as unknown"
        COUNTER = "counter", "the counter fell or grew too fast: the energy of the interval is unknown"
        CLOCK_CORRECTED = "clock_corrected", "the clock was wrong: the time is corrected"
        CLOCK_REFUSED = "clock_refused", "the clock was too wrong: the sample is lost"
        UNREADABLE_LINE = "unreadable_line", "line that cannot be parsed: ignored"
        FOREIGN_GPU = "foreign_gpu", "GPU that the host does not have: refused"

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="reading_faults")
    day = models.DateField()
    source = models.CharField(max_length=20, choices=ReadingSource.choices)
    reading = models.CharField(max_length=30)
    kind = models.CharField(max_length=20, choices=Kind.choices)
    count = models.BigIntegerField()
    last_at = models.DateTimeField(help_text="time of the last of these readings")
    last_value = models.FloatField(
        null=True, help_text="the last of these readings; for a clock, seconds ahead of the server"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host", "day", "source", "reading", "kind"], name="one_count_of_reading_faults"
            )
        ]


class DcgmTarget(models.Model):
    """The dcgm-exporter of a host, as operators entered it, and the result of its last scrape."""

    class Problem(models.TextChoices):
        NONE = "", "none"
        UNREACHABLE = "unreachable", "no connection"
        TIMEOUT = "timeout", "no complete answer in time"
        REDIRECT = "redirect", "answered with a redirect"
        STATUS = "status", "answered with an error"
        TOO_LARGE = "too_large", "the answer is too large"
        ENCODED = "encoded", "the answer is compressed"
        NOT_TEXT = "not_text", "the answer is not UTF-8 text"
        NO_GPU = "no_gpu", "the answer has no value of a GPU of this host"

    host = models.OneToOneField(Host, on_delete=models.CASCADE, related_name="dcgm_target")
    url = models.CharField(max_length=300)
    created_at = models.DateTimeField()
    due_at = models.DateTimeField(help_text="time of the next scrape")
    scraped_at = models.DateTimeField(null=True, help_text="time of the last scrape")
    succeeded_at = models.DateTimeField(null=True, help_text="time of the last scrape without a problem")
    problem = models.CharField(max_length=20, choices=Problem.choices, default="", blank=True)
    fields_read = models.PositiveIntegerField(
        null=True, help_text="fields of DCGM with a value in the last successful scrape"
    )
    units_read = models.PositiveIntegerField(null=True, help_text="units with a value in that scrape")
    unreadable_lines = models.PositiveIntegerField(null=True, help_text="lines that could not be parsed")
    refused_gpus = models.PositiveIntegerField(
        null=True, help_text="GPUs and MIG instances that are not of this host"
    )

    class Meta:
        indexes = [models.Index(fields=["due_at"], name="due_dcgm_targets")]


class DcgmScrape(models.Model):
    """The values of one scrape of a host, kept until late samples of its time have arrived.

    ``values`` is a matrix of little-endian floats with a row for each of ``units`` and a column for each of
    ``telemetry.dcgm.fields.SAMPLE_FIELDS``; NaN is unknown.
    """

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="+")
    at = models.DateTimeField()
    units = ArrayField(models.BigIntegerField())
    values = models.BinaryField()

    class Meta:
        indexes = [
            models.Index(fields=["host", "at"], name="dcgm_scrapes_of_a_host"),
            models.Index(fields=["at"], name="old_dcgm_scrapes"),
        ]


class SlowReading(models.Model):
    """A counter or flag of a GPU that seldom changes. There is a row for each change."""

    Source = ReadingSource

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="+")
    reading = models.CharField(max_length=30)
    source = models.CharField(max_length=10, choices=ReadingSource.choices)
    at = models.DateTimeField()
    value = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["gpu", "reading", "source", "at"], name="one_slow_reading_at_a_time"
            )
        ]


class RunUse(models.Model):
    """The use of the processes of a run on one host since its start, from its control group."""

    pk = models.CompositePrimaryKey("run", "ts")
    run = models.ForeignKey(Run, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    ts = models.DateTimeField()
    cpu_seconds = models.FloatField(null=True)
    memory_mib = models.IntegerField(null=True)
    memory_peak_mib = models.IntegerField(null=True)
    io_read_bytes = models.BigIntegerField(null=True)
    io_written_bytes = models.BigIntegerField(null=True)
    network_rx_bytes = models.BigIntegerField(null=True)
    network_tx_bytes = models.BigIntegerField(null=True)

    class Meta:
        managed = False
        db_table = "telemetry_runuse"


class HostUse(models.Model):
    """The use of all processes of a host. ``disks`` and ``networks`` are [bytes in, bytes out] by device."""

    pk = models.CompositePrimaryKey("host", "ts")
    host = models.ForeignKey(Host, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    ts = models.DateTimeField()
    cpu_seconds = models.FloatField(null=True)
    memory_used_mib = models.IntegerField(null=True)
    disk_bytes = models.BigIntegerField(null=True)
    disk_free_bytes = models.BigIntegerField(null=True)
    disks = models.JSONField(default=dict)
    networks = models.JSONField(default=dict)

    class Meta:
        managed = False
        db_table = "telemetry_hostuse"


class ProcessUse(models.Model):
    """The use of one unit by one process of the run that held the unit."""

    pk = models.CompositePrimaryKey("unit", "ts", "pid")
    unit = models.ForeignKey(Unit, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    ts = models.DateTimeField()
    pid = models.IntegerField()
    run = models.ForeignKey(Run, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    name = models.CharField(max_length=64)
    sm_percent = models.FloatField(null=True)
    memory_mib = models.IntegerField(null=True)

    class Meta:
        managed = False
        db_table = "telemetry_processuse"
