"""Define prices and cost centres. Both are dated and append-only."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from scheduler.models import Pool, Project


class Price(models.Model):
    """A line of the rate card: the cost and the price of one GPU-hour of a model from a date on.

    The table is append-only. The cost and the price of a slice are in proportion to its slots.
    """

    pool = models.ForeignKey(
        Pool, null=True, blank=True, on_delete=models.PROTECT, help_text="empty: every pool"
    )
    model = models.CharField(max_length=60)
    cost_per_gpu_hour = models.DecimalField(
        max_digits=12, decimal_places=6, help_text="cost to the owner per GPU-hour"
    )
    price_per_gpu_hour = models.DecimalField(
        max_digits=12, decimal_places=6, help_text="price per GPU-hour that teams are charged"
    )
    valid_from = models.DateTimeField()
    note = models.CharField(max_length=300, default="", blank=True, help_text="how the cost was calculated")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "model", "valid_from"],
                name="one_price_per_model_and_date",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                condition=Q(cost_per_gpu_hour__gte=0) & Q(price_per_gpu_hour__gte=0),
                name="prices_are_not_negative",
            ),
        ]


class CostCentre(models.Model):
    """The cost centre that pays for a project from a date on."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="cost_centres")
    code = models.CharField(max_length=40)
    valid_from = models.DateTimeField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project", "valid_from"], name="one_cost_centre_per_project_and_date"
            )
        ]
