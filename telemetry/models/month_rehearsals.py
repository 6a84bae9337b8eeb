"""Define the stored results of rehearsals of a close."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from telemetry.models.statements import Statement


class MonthRehearsal(models.Model):
    """The results of the last rehearsal for one month.

    A rehearsal runs all checks of a close, and the audit. It changes nothing in the ledger. ``started_at`` is
    the start of the last run; a run that a person requests updates it only when the run has ended. While a
    run is in progress, ``checks`` and ``checked_at`` are those of the run before.
    """

    statement = models.OneToOneField(
        Statement, primary_key=True, on_delete=models.CASCADE, related_name="rehearsal"
    )
    started_at = models.DateTimeField()
    checked_at = models.DateTimeField(
        null=True, help_text="start of the last run that has ended; empty: none has ended"
    )
    checks = models.JSONField(default=list, help_text="each with check, ok and figures")
    focus = models.JSONField(
        null=True, help_text="rows and broken rules of the FOCUS files; empty: they were not checked"
    )
    run_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="person who rehearsed the close; empty: the nightly run",
    )
