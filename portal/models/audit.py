"""The append-only audit trail."""

from __future__ import annotations

from django.db import models

from portal.models.accounts import User
from scheduler.models import Team


class AuditEvent(models.Model):
    """A change: actor, action, values before and after, and reason. A trigger rejects UPDATE and DELETE."""

    at = models.DateTimeField()
    actor = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+", help_text="empty: the program itself"
    )
    actor_name = models.CharField(max_length=150)
    verb = models.CharField(max_length=60, help_text="the service's name")
    target = models.CharField(max_length=120, help_text="kind and id")
    target_name = models.CharField(max_length=120, default="")
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    why = models.CharField(max_length=1000, default="", blank=True)
    via = models.CharField(max_length=10, default="web", help_text="web, api, cli, program")

    class Meta:
        indexes = [models.Index(fields=["-at"]), models.Index(fields=["target"])]
