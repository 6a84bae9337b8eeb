"""Define credits and manual adjustments of a statement."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from scheduler.models import Project, Team
from telemetry.models.amounts import CurrencyAmountField
from telemetry.models.charges import Charge
from telemetry.models.statements import ChargeCell, Statement, StatementLine


class AdjustmentKindChoices(models.TextChoices):
    """The kind of an adjustment. It is also the bucket of its statement line."""

    CREDIT = "credit", "credit: gives back a part of a charge"
    ADJUSTMENT = "adjustment", "adjustment: adds to a statement, or takes from it"


class AdjustmentState(models.TextChoices):
    PROPOSED = "proposed", "proposed: waits for another person"
    APPROVED = "approved", "approved: on the statement"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn", "withdrawn before a decision"


class Adjustment(models.Model):
    """An amount that a person adds to the statement of a month, and that another person approves.

    Only an approved adjustment counts. It is part of the statement line whose bucket is the adjustment's
    kind. A trigger refuses every change after the decision. To withdraw an approved adjustment, a second row
    with the opposite amount is added, and its ``withdraws`` refers to the first row.

    A credit gives back charges on the statement ``credited``, of the same or an earlier month. It refers to
    one charge line, to one statement line, or without either to all charges of its cost centre.
    """

    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="adjustments")
    number = models.CharField(max_length=20, unique=True, help_text="such as 2026-10-A1")
    kind = models.CharField(max_length=10, choices=AdjustmentKindChoices.choices)
    cost_centre = models.CharField(max_length=40)
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+")
    project = models.ForeignKey(Project, null=True, on_delete=models.PROTECT, related_name="+")
    currency = models.CharField(max_length=3)
    amount = CurrencyAmountField(help_text="negative: less to pay")
    reason = models.CharField(max_length=1000)
    credited = models.ForeignKey(
        Statement,
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="month of the charges that a credit gives back",
    )
    line = models.ForeignKey(StatementLine, null=True, on_delete=models.PROTECT, related_name="credits")
    charge = models.ForeignKey(Charge, null=True, on_delete=models.PROTECT, related_name="credits")
    withdraws = models.ForeignKey(
        "self",
        null=True,
        on_delete=models.PROTECT,
        related_name="withdrawals",
        help_text="it takes this back",
    )
    day = models.DateField(help_text="billing day of the month on which it counts")
    author = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    author_name = models.CharField(max_length=150, help_text="name at the proposal")
    proposed_at = models.DateTimeField()
    state = models.CharField(max_length=10, choices=AdjustmentState.choices, default=AdjustmentState.PROPOSED)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    decided_by_name = models.CharField(max_length=150, default="", help_text="name at the decision")
    decided_at = models.DateTimeField(null=True)
    cell = models.ForeignKey(
        ChargeCell,
        null=True,
        on_delete=models.PROTECT,
        related_name="adjustments",
        help_text="sum of the statement that contains it, set by the approval",
    )
    decision_note = models.CharField(max_length=1000, default="")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(kind="adjustment", credited=None, line=None, charge=None)
                | Q(kind="credit", credited__isnull=False),
                name="a_credit_refers_to_charges",
            ),
            models.CheckConstraint(
                condition=Q(charge=None) | Q(line__isnull=False), name="a_credited_charge_has_a_line"
            ),
            models.CheckConstraint(
                condition=~Q(amount=0)
                & (
                    ~Q(kind="credit")
                    | Q(withdraws=None, amount__lt=0)
                    | Q(withdraws__isnull=False, amount__gt=0)
                ),
                name="a_credit_is_negative",
            ),
            models.CheckConstraint(
                condition=Q(cell=None) ^ Q(state="approved"),
                name="an_approved_adjustment_is_on_a_statement",
            ),
            models.CheckConstraint(
                condition=~Q(state="approved") | (Q(decided_by__isnull=False) & ~Q(decided_by=F("author"))),
                name="two_different_people_make_an_adjustment",
            ),
            models.UniqueConstraint(
                fields=["withdraws"],
                condition=Q(state__in=["proposed", "approved"]),
                name="an_adjustment_is_withdrawn_once",
            ),
        ]
        indexes = [models.Index(fields=["statement", "cost_centre"], name="adjustments_of_a_statement")]

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


ADJUSTMENT_TRANSITIONS: dict[str, frozenset[str]] = {
    AdjustmentState.PROPOSED: frozenset(
        {AdjustmentState.APPROVED, AdjustmentState.REJECTED, AdjustmentState.WITHDRAWN}
    ),
    AdjustmentState.APPROVED: frozenset(),
    AdjustmentState.REJECTED: frozenset(),
    AdjustmentState.WITHDRAWN: frozenset(),
}
