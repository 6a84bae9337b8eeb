"""Define monthly statements and their frozen lines."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class StatementState(models.TextChoices):
    OPEN = "open"
    CLOSING = "closing", "closing: no new charges, checks run"
    CLOSED = "closed"


class IdlePayer(models.TextChoices):
    OPERATOR = "operator", "the operator"
    GUARANTEE = "guarantee", "teams, in proportion to their guarantees"
    USE = "use", "teams, in proportion to their use"


class Statement(models.Model):
    """The statement of a month. Once it is closed, a trigger rejects changes to it and to its lines."""

    month = models.DateField(unique=True, help_text="first day of the month")
    state = models.CharField(max_length=8, choices=StatementState.choices, default=StatementState.OPEN)
    idle_payer = models.CharField(max_length=10, choices=IdlePayer.choices, default=IdlePayer.OPERATOR)
    currency = models.CharField(
        max_length=3, default="", blank=True, help_text="currency of the month, set at the close"
    )
    checks = models.JSONField(default=list, help_text="checks of the close, with their figures")
    totals = models.JSONField(default=dict, help_text="conservation figures per pool, as decimal strings")
    digest = models.CharField(
        max_length=64, default="", blank=True, help_text="SHA-256 in the layout of digest_format"
    )
    digest_format = models.PositiveSmallIntegerField(
        default=1, help_text="1: the CSV of its lines; 2: also charges, prices, cost centres, previous digest"
    )
    previous_month = models.DateField(
        null=True,
        blank=True,
        help_text="month whose digest is part of this digest; empty: the first of format 2",
    )
    signature = models.CharField(
        max_length=88, default="", blank=True, help_text="Ed25519, base64; empty: closed without a key"
    )
    public_key = models.CharField(
        max_length=44, default="", blank=True, help_text="public key of the signature, base64"
    )
    key_fingerprint = models.CharField(
        max_length=64, default="", blank=True, help_text="SHA-256 of the public key"
    )
    missing_samples = models.JSONField(
        default=list, help_text="hosts that still owed samples at the close, with their hours"
    )
    missing_samples_reason = models.CharField(
        max_length=1000,
        default="",
        blank=True,
        help_text="why the month was closed without these samples, by the person who closed it",
    )
    closed_at = models.DateTimeField(null=True)
    closed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )


class StatementLine(models.Model):
    """A frozen line of a closed month: one pool, cost centre, project, workload type, model and bucket."""

    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="lines")
    pool_name = models.CharField(max_length=80)
    cost_centre = models.CharField(max_length=40)
    team_name = models.CharField(max_length=80)
    project_name = models.CharField(max_length=80)
    workload_type = models.CharField(max_length=12)
    model = models.CharField(max_length=60)
    bucket = models.CharField(max_length=16)
    gpu_hours = models.DecimalField(max_digits=18, decimal_places=6)
    covered_share = models.FloatField(
        null=True, help_text="part of its time covered by samples; empty: none was expected"
    )
    used_share = models.FloatField(null=True, help_text="mean utilisation where measured")
    amount = models.DecimalField(
        max_digits=14, decimal_places=2, help_text="amount, rounded so that the lines sum to the total"
    )
    cost = models.DecimalField(max_digits=14, decimal_places=2)


STATEMENT_TRANSITIONS: dict[str, frozenset[str]] = {
    StatementState.OPEN: frozenset({StatementState.CLOSING}),
    StatementState.CLOSING: frozenset({StatementState.CLOSED, StatementState.OPEN}),
    StatementState.CLOSED: frozenset(),
}
