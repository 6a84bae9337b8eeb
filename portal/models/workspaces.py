"""Define the origins, entry codes and sessions of workspaces.

A workspace is the web interface of a running notebook or job.
"""

from __future__ import annotations

import hashlib

from django.db import models

from portal.models.accounts import ApiToken, User
from scheduler.models import Workload


class WorkspaceOrigin(models.Model):
    """The random host name label of one workload's workspace. No other workload has the same label."""

    workload = models.OneToOneField(
        Workload, primary_key=True, on_delete=models.CASCADE, related_name="workspace_origin"
    )
    label = models.CharField(unique=True, max_length=40)
    created_at = models.DateTimeField()


class EntryCode(models.Model):
    """A one-time code that opens a workspace.

    The portal issues the code for one user. The edge redeems it within a minute.
    """

    code_hash = models.CharField(unique=True, max_length=64)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="+")
    session_key_hash = models.CharField(max_length=64, default="", blank=True)
    api_token = models.ForeignKey(ApiToken, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    session_generation = models.PositiveIntegerField(
        default=0, help_text="generation of the user's sessions that issued it; an older one is refused"
    )


class WorkspaceSession(models.Model):
    """A browser's session in a workspace, identified by a cookie of the workspace.

    When the session ends, its WebSockets are closed.
    """

    token_hash = models.CharField(unique=True, max_length=64)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="+")
    session_key_hash = models.CharField(
        max_length=64, default="", blank=True, help_text="session key of the portal session that created it"
    )
    api_token = models.ForeignKey(
        ApiToken,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="+",
        help_text="token that created it",
    )
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    session_generation = models.PositiveIntegerField(
        default=0, help_text="generation of the entry code; an older one than the user's is refused"
    )


def hash_workspace_secret(secret: str) -> str:
    """Return the hash of an entry code or a workspace cookie. Only this hash is stored.

    A browser may send any bytes as a cookie, even bytes that are not valid text.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
