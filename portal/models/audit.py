"""Define the append-only audit trail."""

from __future__ import annotations

from django.db import models

from portal.models.accounts import User
from scheduler.models import Team

# The verb of a question that finance asks about unusual spend. Its notices are made from its audit record.
QUESTION_VERB = "ask_about_spend"
# The verbs of all services that change amounts, prices, payers, budgets or the close of a month.
MONEY_VERBS = (
    "add_cost_centre",
    "approve_adjustment",
    QUESTION_VERB,
    "change_billing_settings",
    "change_cost_centre",
    "change_currency",
    "close_month",
    "explain_unusual_spend",
    "propose_adjustment",
    "propose_close",
    "reject_adjustment",
    "retire_cost_centre",
    "set_billing_mode",
    "set_billing_zone",
    "set_budget",
    "set_cost_centres",
    "set_idle_payer",
    "set_price",
    "set_price_factor",
    "set_refund_limit",
    "withdraw_adjustment",
)


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

    @property
    def verb_text(self) -> str:
        """Return the verb in words, such as ``close month``."""
        return self.verb.replace("_", " ")

    class Meta:
        indexes = [models.Index(fields=["-at"]), models.Index(fields=["target"])]
