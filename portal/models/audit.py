"""Define the append-only audit trail."""

from __future__ import annotations

from django.db import models

from portal.models.accounts import User
from scheduler.models import Team


class AuditEvent(models.Model):
    """A change: the actor, the action, the values before and after, and the reason.

    A database trigger rejects UPDATE and DELETE.
    """

    at = models.DateTimeField()
    actor = models.ForeignKey(
        User,
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="person who acted; empty: the program",
    )
    actor_name = models.CharField(max_length=150)
    verb = models.CharField(max_length=60, help_text="name of the service")
    target = models.CharField(max_length=120, help_text="kind and id of the object")
    target_name = models.CharField(max_length=120, default="")
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    why = models.CharField(max_length=1000, default="", blank=True)
    via = models.CharField(
        max_length=10, default="web", help_text="where the action came from: web, api, cli or program"
    )

    class Meta:
        indexes = [models.Index(fields=["-at"]), models.Index(fields=["target"])]
