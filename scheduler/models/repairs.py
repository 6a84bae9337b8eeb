"""Define maintenance windows, state changes, diagnostics and MIG geometry changes."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import F, Q

from scheduler.models.hosts import Gpu, Host
from scheduler.state import states


class MaintenanceWindow(models.Model):
    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="maintenance_windows")
    start = models.DateTimeField()
    end = models.DateTimeField()
    reason = models.CharField(max_length=300)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(end__gt=F("start")), name="maintenance_ends_after_its_start")
        ]


class HostStateChange(models.Model):
    """A change of a host's states.

    These rows decide how each second of the host is charged: as unhealthy, as maintenance or as in use.
    """

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="state_changes")
    lease_state = models.CharField(max_length=10)
    admin_state = models.CharField(max_length=12)
    repair_state = models.CharField(max_length=12)
    reason = models.CharField(max_length=300, default="", blank=True)
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["host", "at"])]


class GpuStateChange(models.Model):
    """A change of the repair state of one GPU. The states of its host do not change with it."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="state_changes")
    repair_state = models.CharField(max_length=12)
    reason = models.CharField(max_length=300, default="", blank=True)
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["gpu", "at"])]


class Diagnostic(models.Model):
    """A test that a host runs on one of its GPUs, for memory, bandwidth and arithmetic.

    A GPU that fails is usually taken out of service (see ``scheduler.sync.gpu_diagnostics``).
    """

    class Why(models.TextChoices):
        OPERATOR = "operator", "requested"
        QUARANTINED = "quarantined", "after its quarantine"
        TRIPPED = "tripped", "after too many failed attempts on its host"
        PERIODIC = "periodic", "periodic, while idle"

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="diagnostics")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="diagnostics")
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    why = models.CharField(max_length=12, choices=Why.choices)
    state = models.CharField(
        max_length=8,
        choices=states.state_choices(states.DiagnosticState),
        default=states.DiagnosticState.WANTED,
    )
    tool = models.CharField(
        max_length=40,
        default="",
        blank=True,
        help_text="tool that ran: dcgm, own, simulated or the name of an operator's diagnostic",
    )
    simulated = models.BooleanField(default=False, help_text="True: nothing was measured")
    checks = models.JSONField(default=list, blank=True, help_text="per check: name, passed, numbers")
    detail = models.CharField(max_length=300, default="", blank=True)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["gpu"],
                condition=Q(state__in=("wanted", "running")),
                name="one_open_diagnostic_per_gpu",
            )
        ]
        indexes = [
            models.Index(fields=["gpu", "-created_at"]),
            models.Index(
                fields=["host"],
                condition=Q(state__in=("wanted", "running")),
                name="open_diagnostics_of_a_host",
            ),
        ]


class GeometryChange(models.Model):
    """A change of a GPU's MIG geometry. The GPU is drained first, then its host applies the new geometry.

    The row is kept after the change.
    """

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="geometry_changes")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="geometry_changes")
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    before = models.JSONField(
        default=list, blank=True, help_text="profiles of its units; empty: one whole GPU"
    )
    parts = models.JSONField(
        default=list, blank=True, help_text="profile and start of each unit; empty: one whole GPU"
    )
    state = models.CharField(
        max_length=10,
        choices=states.state_choices(states.GeometryState),
        default=states.GeometryState.DRAINING,
    )
    detail = models.CharField(
        max_length=300, default="", blank=True, help_text="report of the host about the change"
    )
    created_at = models.DateTimeField()
    told_at = models.DateTimeField(
        null=True, blank=True, help_text="time at which the GPU was free and its host received the command"
    )
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["gpu"],
                condition=Q(state__in=("draining", "changing")),
                name="one_open_change_of_geometry_per_gpu",
            )
        ]
        indexes = [
            models.Index(fields=["gpu", "-created_at"]),
            models.Index(
                fields=["host"],
                condition=Q(state__in=("draining", "changing")),
                name="open_geometry_of_a_host",
            ),
        ]

    @property
    def profiles(self) -> list[str]:
        """Return the profiles of the units that the GPU should have. An empty list means one whole GPU."""
        return [str(part["profile"]) for part in self.parts]
