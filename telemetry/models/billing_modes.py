"""Define whether the charges of a team are invoiced."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from scheduler.models import Team


class BillingMode(models.TextChoices):
    CHARGEBACK = "chargeback", "chargeback: the charges are invoiced"
    SHOWBACK = "showback", "showback: the charges are shown, not invoiced"


class TeamBillingMode(models.Model):
    """The billing mode of a team from a month on. Before its first row, a team has chargeback.

    Of two rows with the same first month, the newer one counts. The table is append-only. A trigger rejects a
    first month that is closed, or that a closed month follows.
    """

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="billing_modes")
    mode = models.CharField(max_length=10, choices=BillingMode.choices)
    first_month = models.DateField(help_text="first day of the first month in this mode")
    created_at = models.DateTimeField()
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(first_month__day=1), name="a_billing_mode_begins_with_a_month"
            ),
        ]
        indexes = [models.Index(fields=["team", "first_month"], name="billing_modes_of_a_team")]
