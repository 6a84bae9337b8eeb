"""Define who is in charge of the work of people whose accounts are closed."""

from __future__ import annotations

from django.db import models

from portal.models.accounts import User
from scheduler.models import Workload


class WorkHandover(models.Model):
    """The lead who is in charge of a workload whose owner has left, and gets its notices.

    The owner of the workload does not change, because its home and its charges carry the owner's name.
    ``lead`` is null while the team has no lead.
    """

    workload = models.OneToOneField(Workload, on_delete=models.CASCADE, related_name="handover")
    lead = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    at = models.DateTimeField()
