"""Define the time zones of billing months."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class BillingZone(models.Model):
    """The time zone of the billing months from ``first_month`` on. Before the first row, months are in UTC.

    The table is append-only. A trigger accepts a row only if ``first_month`` is later than in every other
    row, and if nothing is charged in this month or later.
    """

    first_month = models.DateField(unique=True, help_text="first day of the first month in this zone")
    time_zone = models.CharField(max_length=60, help_text="name in the time zone database")
    created_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(first_month__day=1), name="a_billing_zone_begins_with_a_month"
            ),
        ]
