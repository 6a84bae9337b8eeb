"""Define the row that names the leading engine, and the row with the last clock reading."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class Leader(models.Model):
    """The single row that names the leading engine process.

    Each new leader increments ``epoch``. An engine applies a plan only if this row still has its epoch.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    epoch = models.BigIntegerField(default=0)
    holder = models.CharField(max_length=80, default="", blank=True)
    renewed_at = models.DateTimeField(null=True, blank=True)
    last_cycle_at = models.DateTimeField(null=True, blank=True)
    last_cycle_seconds = models.FloatField(null=True, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="there_is_one_leader_row")]


class ClockReading(models.Model):
    """The single row with the last reading of the wall clock and CLOCK_BOOTTIME.

    ``scheduler.coordination.clock_correction`` uses this row to detect that the wall clock was set.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    wall = models.DateTimeField()
    machine = models.CharField(max_length=120)
    uptime = models.FloatField(help_text="seconds on CLOCK_BOOTTIME of that machine")
    set_at = models.DateTimeField(
        null=True, blank=True, help_text="time at which a step of the wall clock was last detected"
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="there_is_one_clock_reading")]
