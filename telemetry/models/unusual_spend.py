"""Define unusual spend, the searches for it, and the explanations of people."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from scheduler.models import Project, Team
from telemetry.models.amounts import CurrencyAmountField
from telemetry.models.statements import Statement


class UnusualSpendKind(models.TextChoices):
    """The rule that found the spend. A new price or a new project needs no explanation by a person."""

    HIGH_DAY = "high_day", "a day far above the usual day"
    NOT_TAKEN = "not_taken", "reserved time that was not taken"
    NEW_PRICE = "new_price", "a new price"
    NEW_PROJECT = "new_project", "a new project"


SPEND_TO_EXPLAIN = (UnusualSpendKind.HIGH_DAY, UnusualSpendKind.NOT_TAKEN)


class UnusualSpend(models.Model):
    """Spend of a month that a rule found unusual.

    The subject is a workload name (``workload_name``), a person (``user``) or a project, in this order: the
    narrowest that is set. A new price has none of them, but a GPU model in ``figures``. Amounts are sums of
    cents. A search updates the rows that it finds again, and deletes the others without an explanation.
    """

    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="unusual_spend")
    kind = models.CharField(max_length=12, choices=UnusualSpendKind.choices)
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+")
    project = models.ForeignKey(Project, null=True, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    workload_name = models.CharField(max_length=80, default="", blank=True)
    subject = models.CharField(max_length=200, help_text="name of the subject when it was found")
    first_day = models.DateField(help_text="first unusual billing day")
    last_day = models.DateField(help_text="last unusual billing day")
    currency = models.CharField(max_length=3)
    amount = CurrencyAmountField(help_text="charge of these days, or of the time that was not taken")
    usual = CurrencyAmountField(null=True, help_text="usual charge of one of these days; empty: no usual day")
    figures = models.JSONField(default=dict, help_text="further figures of the rule, such as hours and days")
    found_at = models.DateTimeField(help_text="when a search first found it")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["statement", "kind", "project", "user", "workload_name", "subject", "first_day"],
                name="unusual_spend_is_found_once",
                nulls_distinct=False,
            ),
        ]

    def __str__(self) -> str:
        return self.subject


class UnusualSpendExplanation(models.Model):
    """A person's reason for unusual spend. The newest one of a row counts. The table is append-only.

    A trigger refuses an explanation in a closed month.
    """

    spend = models.ForeignKey(UnusualSpend, on_delete=models.PROTECT, related_name="explanations")
    reason = models.CharField(max_length=1000)
    author = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField()


class UnusualSpendSearch(models.Model):
    """The time of the last search for unusual spend in a month."""

    statement = models.OneToOneField(
        Statement, primary_key=True, on_delete=models.CASCADE, related_name="unusual_spend_search"
    )
    searched_at = models.DateTimeField()
