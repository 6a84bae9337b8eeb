"""Define the directory of cost centres, and their dated shares of projects and dedicated pools."""

from __future__ import annotations

from decimal import Decimal

from django.db import models
from django.db.models import Q

from scheduler.models import Pool, Project


class CostCentre(models.Model):
    """An entry of the directory of cost centres.

    The code never changes. An entry is never deleted. Nothing may be charged to it from ``retired_from`` on.
    """

    code = models.CharField(max_length=40, unique=True)
    name = models.CharField(max_length=120, default="", blank=True)
    postal_address = models.CharField(max_length=500, default="", blank=True)
    purchase_order = models.CharField(
        max_length=80, default="", blank=True, help_text="reference that statements show"
    )
    retired_from = models.DateTimeField(
        null=True, blank=True, help_text="it pays until this time; empty: not retired"
    )
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=~Q(code=""), name="a_cost_centre_has_a_code"),
        ]

    def __str__(self) -> str:
        return f"{self.code} {self.name}".rstrip()


class CostCentreShare(models.Model):
    """The percent that a cost centre pays for a project or a dedicated pool, from a date on.

    The rows of one payer with equal ``valid_from`` and ``created_at`` are one split. Their shares sum to 100
    %. A split replaces older splits with the same ``valid_from``. The table is append-only.

    A dedicated (static) pool belongs to one team. For a pool, only the time in which no work holds its GPUs
    is charged to the cost centre.
    """

    project = models.ForeignKey(
        Project, null=True, blank=True, on_delete=models.PROTECT, related_name="cost_centre_shares"
    )
    pool = models.ForeignKey(
        Pool,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="cost_centre_shares",
        help_text="dedicated pool whose unused time it pays for",
    )
    code = models.CharField(max_length=40, help_text="code of the cost centre")
    percent = models.DecimalField(max_digits=5, decimal_places=2, default=Decimal(100))
    valid_from = models.DateTimeField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project", "valid_from", "created_at", "code"],
                name="one_share_per_project_split_and_cost_centre",
            ),
            models.UniqueConstraint(
                fields=["pool", "valid_from", "created_at", "code"],
                name="one_share_per_pool_split_and_cost_centre",
            ),
            models.CheckConstraint(
                condition=Q(project__isnull=True) ^ Q(pool__isnull=True),
                name="a_share_is_of_a_project_or_of_a_pool",
            ),
            models.CheckConstraint(
                condition=Q(percent__gt=0) & Q(percent__lte=100), name="a_share_is_at_most_the_whole"
            ),
        ]


class SettledShare(models.Model):
    """A record that charging has applied a share. Lines that contradicted the share were rewritten."""

    share = models.OneToOneField(CostCentreShare, primary_key=True, on_delete=models.CASCADE)
    settled_at = models.DateTimeField()
