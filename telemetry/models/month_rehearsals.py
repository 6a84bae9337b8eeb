"""Define the stored results of rehearsals of a close."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from telemetry.models.statements import Statement


class MonthRehearsal(models.Model):
    """The results of the last run of all checks of a close, with the audit, for one month.

    ``started_at`` is the start of the last run. While a run is in progress, ``checks`` and ``checked_at`` are
    those of the run before. A rehearsal changes nothing in the ledger.
    """

    statement = models.OneToOneField(
        Statement, primary_key=True, on_delete=models.CASCADE, related_name="rehearsal"
    )
    started_at = models.DateTimeField()
    checked_at = models.DateTimeField(null=True, help_text="when the checks ran; empty: they never ended")
    checks = models.JSONField(default=list, help_text="each with check, ok and figures")
    run_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="person who rehearsed the close; empty: the nightly run",
    )
