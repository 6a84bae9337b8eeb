"""Define the columns of requested hardware, which reservations and workloads share."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models


class HardwareColumns(models.Model):
    """The columns of a hardware request (``Ask`` in ``scheduler.core.model.snapshot``).

    The tables of workloads and reservations have these columns.
    """

    units = models.PositiveIntegerField()
    hosts = models.PositiveIntegerField(default=1)
    models_wanted = ArrayField(
        models.CharField(max_length=60), default=list, blank=True, help_text="in order of preference"
    )
    profile = models.CharField(max_length=30, default="", blank=True)
    min_memory_mib = models.PositiveIntegerField(default=0)
    min_compute_capability = models.PositiveSmallIntegerField(default=0)
    nvlink = models.BooleanField(default=False)
    labels_required = models.JSONField(default=dict, blank=True)
    cpu_milli = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveIntegerField(default=0)
    labels_preferred = models.JSONField(
        default=dict, blank=True, help_text="hosts with more of these labels are preferred"
    )
    spread = models.BooleanField(
        default=False, help_text="spread over hosts that share as little as possible"
    )

    class Meta:
        abstract = True
