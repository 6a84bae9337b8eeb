"""Define the reports of ended workloads, which are kept after their samples are deleted."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from scheduler.models import Unit, Workload


class RunReport(models.Model):
    """The measured use of an ended workload over all its attempts.

    The row is written again while samples or charges of its time may still arrive. Then it is frozen.
    """

    workload = models.OneToOneField(
        Workload, primary_key=True, on_delete=models.CASCADE, related_name="report"
    )
    start = models.DateTimeField(help_text="start of the first time in which it held a unit")
    end = models.DateTimeField(help_text="end of the last time in which it held a unit")
    point_seconds = models.PositiveIntegerField(help_text="length of a point of the series")
    advice = models.JSONField(default=list, help_text="what to ask for next time: codes with their numbers")
    host_use = models.JSONField(
        default=dict, help_text="use of CPU, memory, disks and network: series and totals"
    )
    made_at = models.DateTimeField(help_text="time at which it was last written")
    refresh_at = models.DateTimeField(null=True, help_text="time of the next look; empty: frozen")
    frozen_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(end__gte=F("start")), name="a_run_report_has_a_length"),
            models.CheckConstraint(
                condition=Q(frozen_at__isnull=True) ^ Q(refresh_at__isnull=True),
                name="a_run_report_is_frozen_or_looked_at_again",
            ),
        ]
        indexes = [
            models.Index(
                fields=["refresh_at"], condition=Q(frozen_at__isnull=True), name="run_reports_not_frozen"
            )
        ]


def _series(help_text: str) -> ArrayField[list[float | None], list[float | None]]:
    """Return a column with one value for each point. NULL means unknown or not held, never zero."""
    return ArrayField(models.FloatField(null=True), default=list, help_text=help_text)


class RunReportUnit(models.Model):
    """The use of one unit in the report of a workload: sums as in a rollup, and one array for each series.

    The points of the series begin at ``RunReport.start``, rounded down to the length of a point (UTC).
    """

    report = models.ForeignKey(RunReport, on_delete=models.CASCADE, related_name="units")
    unit = models.ForeignKey(Unit, on_delete=models.PROTECT, related_name="+")
    held_seconds = models.FloatField()
    covered_seconds = models.FloatField()
    samples = models.PositiveIntegerField()
    utilisation_seconds = models.FloatField(null=True)
    utilisation_max = models.FloatField(null=True)
    busy_seconds = models.FloatField(null=True)
    inefficient_seconds = models.FloatField(null=True)
    sm_unmeasured_seconds = models.FloatField(null=True)
    idle_seconds = models.FloatField(null=True)
    empty_seconds = models.FloatField(null=True)
    sm_active_seconds = models.FloatField(null=True)
    tensor_active_seconds = models.FloatField(null=True)
    memory_used_max_mib = models.IntegerField(null=True)
    energy_mj = models.BigIntegerField(null=True)
    energy_faults = models.IntegerField(null=True)
    utilisation_unknown_seconds = models.FloatField(null=True)
    sm_unknown_seconds = models.FloatField(null=True)
    memory_peak_at = models.DateTimeField(null=True, help_text="start of the time with the memory's peak")
    busy = _series("busy part of the time, in percent")
    empty = _series("part of the time without a process, in percent")
    utilisation = _series("mean, in percent")
    sm_active = _series("mean, in percent")
    tensor_active = _series("mean, in percent")
    memory_mib = _series("peak, in MiB")
    power_w = _series("mean, in watts")
    dram_active = _series("mean, in percent")
    pcie_mib_s = _series("mean of both directions, in MiB/s")
    nvlink_mib_s = _series("mean of both directions, in MiB/s")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["report", "unit"], name="a_unit_is_once_in_a_run_report")
        ]
