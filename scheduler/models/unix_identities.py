"""Define the Unix identities of people, as which their work can run."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models


class UnixIdentity(models.Model):
    """The Unix user of a person or a service account, on hosts with shared homes."""

    person = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="unix_identity"
    )
    uid = models.PositiveIntegerField(unique=True)
    gid = models.PositiveIntegerField()
    groups = ArrayField(models.PositiveIntegerField(), default=list, blank=True, help_text="further groups")
    name = models.CharField(max_length=100, unique=True, help_text="Unix name")
    home = models.CharField(max_length=400, help_text="path of the home on the hosts")
    provider = models.CharField(
        max_length=40, default="", blank=True, help_text="the provider that set it; empty: an operator"
    )
    changed_at = models.DateTimeField()

    def as_run_value(self) -> dict[str, Any]:
        """Return the value of ``Workload.unix_identity``, with the fields of ``protocol.PersonWanted``."""
        return {
            "uid": self.uid,
            "gid": self.gid,
            "groups": list(self.groups),
            "name": self.name,
            "home": self.home,
        }

    def __str__(self) -> str:
        return f"{self.name} ({self.uid})"
