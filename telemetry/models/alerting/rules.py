"""Define the alert rules that operators of a pool changed."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from scheduler.models import Pool
from telemetry.core.alerts.kinds import (
    DEFAULT_POSTPONE_MINUTES,
    DEFAULT_POSTPONE_TIMES,
    THRESHOLD_FIELDS,
    AlertKind,
    AlertThresholds,
)


class AlertRule(models.Model):
    """The thresholds of a kind of alert in a pool. A pool without a row has the defaults of the kind."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="alert_rules")
    kind = models.CharField(max_length=16, choices=[(kind.value, kind.value) for kind in AlertKind])
    enabled = models.BooleanField(default=True)
    begin = models.FloatField(help_text="an alert begins at this value or more")
    end = models.FloatField(help_text="an alert ends at this value or less")
    begin_minutes = models.PositiveIntegerField(help_text="time for which the value must hold to begin")
    end_minutes = models.PositiveIntegerField(help_text="time for which the value must hold to end")
    stop_work = models.BooleanField(default=False, help_text="stop unused work after a warning")
    notice_minutes = models.PositiveIntegerField(help_text="time from the warning to the stop")
    postpone_times = models.PositiveSmallIntegerField(
        default=DEFAULT_POSTPONE_TIMES, help_text="how often the stop of a job may be postponed"
    )
    postpone_minutes = models.PositiveIntegerField(
        default=DEFAULT_POSTPONE_MINUTES, help_text="longest time of one postponement"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["pool", "kind"], name="one_alert_rule_per_pool_and_kind"),
            models.CheckConstraint(condition=Q(end__lt=F("begin")), name="an_alert_ends_below_its_begin"),
        ]

    def __str__(self) -> str:
        return f"alert rule {self.kind} of {self.pool.name}"

    @property
    def thresholds(self) -> AlertThresholds:
        return AlertThresholds(**{name: getattr(self, name) for name in THRESHOLD_FIELDS})
