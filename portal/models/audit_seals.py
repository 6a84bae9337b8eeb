"""Define the seals that chain committed audit records by hash, and the progress of the stream of records."""

from __future__ import annotations

from django.db import models


class AuditSeal(models.Model):
    """One link of the chain. Its digest covers the digest of the previous link and the sealed records.

    A database trigger rejects UPDATE and DELETE.
    """

    number = models.BigIntegerField(primary_key=True, help_text="1, 2, 3 and so on, without a gap")
    sealed_at = models.DateTimeField(db_index=True)
    events = models.PositiveIntegerField(help_text="number of sealed records")
    highest_event = models.BigIntegerField(help_text="highest id of the records sealed so far")
    previous = models.CharField(max_length=64, help_text="digest of the previous link; zeros for the first")
    digest = models.CharField(max_length=64)


class SealedAuditEvent(models.Model):
    """The digest of one audit record when it was sealed.

    A database trigger rejects UPDATE and DELETE. The id is not a foreign key, because the row must outlive a
    record that somebody removes.
    """

    event_id = models.BigIntegerField(primary_key=True)
    seal = models.ForeignKey(AuditSeal, on_delete=models.PROTECT, related_name="entries")
    digest = models.CharField(max_length=64)


class AuditProgress(models.Model):
    """The progress of the stream of audit records and of the check of the chain. The table has one row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    delivered_seal = models.BigIntegerField(default=0, help_text="the receiver has all records up to it")
    delivered_at = models.DateTimeField(null=True, blank=True)
    failing_since = models.DateTimeField(null=True, blank=True)
    failure = models.CharField(max_length=300, default="", blank=True)
    checked_seal = models.BigIntegerField(default=0, help_text="the present check has reached it")
    checked_at = models.DateTimeField(null=True, blank=True, help_text="end of the last complete check")
    findings = models.JSONField(default=list, help_text="what the last complete check found")
    new_findings = models.JSONField(default=list, help_text="what the present check has found so far")
