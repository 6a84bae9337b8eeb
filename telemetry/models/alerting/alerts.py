"""Define alerts: conditions of a pool that need attention, with their evidence."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q

from scheduler.models import Gpu, Host, Pool, Reservation, Workload
from telemetry.core.alerts.judgement import ALERT_STATE_TABLE, AlertState
from telemetry.core.alerts.kinds import AlertKind

ALERT_TRANSITIONS = ALERT_STATE_TABLE


class Alert(models.Model):
    """One alert of a subject, from its begin to its end.

    The subject is a workload, a reservation, a GPU (with its host) or a host; without any of them it is the
    pool. ``value`` and ``evidence`` are those of the begin. ``stop_at`` is the time at which the unused work
    is stopped; empty: it is not.
    """

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="alerts")
    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=16, choices=[(kind.value, kind.value) for kind in AlertKind])
    subject = models.CharField(max_length=40, help_text="kind and number of the subject, such as gpu:12")
    host = models.ForeignKey(Host, null=True, on_delete=models.CASCADE, related_name="alerts")
    gpu = models.ForeignKey(Gpu, null=True, on_delete=models.CASCADE, related_name="alerts")
    workload = models.ForeignKey(Workload, null=True, on_delete=models.CASCADE, related_name="alerts")
    reservation = models.ForeignKey(Reservation, null=True, on_delete=models.CASCADE, related_name="alerts")
    state = models.CharField(
        max_length=12,
        choices=[(state.value, state.value) for state in AlertState],
        default=AlertState.FIRING,
    )
    value = models.FloatField(help_text="value at the begin, in the unit of the kind")
    evidence = models.JSONField(default=dict, help_text="numbers for the sentence of the alert")
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    snoozed_until = models.DateTimeField(null=True)
    stop_at = models.DateTimeField(null=True, help_text="time at which the unused work is stopped")
    stopped_at = models.DateTimeField(null=True, help_text="time at which the stop was ordered")
    postponed = models.PositiveSmallIntegerField(default=0, help_text="how often its stop was postponed")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "subject"], condition=Q(ended_at=None), name="a_subject_has_one_open_alert"
            ),
            models.CheckConstraint(
                condition=Q(state="ended", ended_at__isnull=False) | (~Q(state="ended") & Q(ended_at=None)),
                name="an_ended_alert_has_an_end",
            ),
        ]
        indexes = [
            models.Index(fields=["-began_at"], name="alerts_by_begin"),
            models.Index(fields=["ended_at"], name="alerts_by_end"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.subject}"
