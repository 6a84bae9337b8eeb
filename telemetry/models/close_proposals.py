"""Define proposals to close a month, the first step of a close by two people."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from telemetry.models.amounts import CurrencyAmountField
from telemetry.models.statements import Statement


class CloseProposal(models.Model):
    """A person's proposal to close a month whose checks have passed. The newest proposal of a month applies.

    ``lines_digest`` is a digest of the statement lines. A close by another person is refused if the lines
    have changed since. The table is append-only.
    """

    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="proposals")
    proposed_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    proposed_at = models.DateTimeField()
    charged = CurrencyAmountField(help_text="charged total of the month")
    lines_digest = models.CharField(max_length=64, help_text="SHA-256 of the lines of the statement")
    missing_samples_reason = models.CharField(
        max_length=1000, default="", blank=True, help_text="why the month is closed without missing samples"
    )
    note = models.CharField(max_length=1000, default="", blank=True)
