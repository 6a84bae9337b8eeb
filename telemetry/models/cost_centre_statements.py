"""Define the statements that a close makes for single cost centres."""

from __future__ import annotations

from django.db import models

from telemetry.models.amounts import CurrencyAmountField
from telemetry.models.statements import Statement


class CostCentreStatement(models.Model):
    """The numbered statement of one cost centre for a closed month and one currency.

    The close makes it from the lines of the month, with copies of all texts. Afterwards a trigger rejects
    every change. ``number`` is ``2026-10/CC-4110/1``: month, code and ``sequence``. The sequence numbers the
    statements of one month and cost centre, which differ in their currency.
    """

    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="documents")
    cost_centre = models.CharField(max_length=40, help_text="code of the cost centre")
    currency = models.CharField(max_length=3, blank=True)
    sequence = models.PositiveSmallIntegerField(help_text="1 for the first currency, 2 for the second")
    number = models.CharField(max_length=60, unique=True, help_text="such as 2026-10/CC-4110/1")
    name = models.CharField(max_length=200, default="", blank=True, help_text="name of the cost centre")
    postal_address = models.CharField(max_length=1000, default="", blank=True)
    purchase_order = models.CharField(max_length=100, default="", blank=True)
    issuer = models.CharField(max_length=80, default="", blank=True, help_text="name of the organisation")
    tax_text = models.CharField(max_length=300, default="", blank=True)
    due_on = models.DateField()
    total = CurrencyAmountField(help_text="sum of the cents of its lines")

    budget = CurrencyAmountField(null=True, help_text="budget of the cost centre for the month; empty: none")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["statement", "cost_centre", "currency"],
                name="one_statement_per_month_cost_centre_and_currency",
            ),
        ]
