"""Compute how much of a charge may still be credited."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db.models import Sum

from scheduler.core.rejection import OperationRejected
from telemetry.core.amounts import ZERO, round_down
from telemetry.core.charge_model import ADJUSTMENT_BUCKETS
from telemetry.core.currencies import smallest_unit
from telemetry.models import Adjustment, AdjustmentKindChoices, AdjustmentState, Charge, StatementLine

COUNTED = (AdjustmentState.APPROVED,)
COUNTED_OR_WAITING = (AdjustmentState.APPROVED, AdjustmentState.PROPOSED)


@dataclass(frozen=True)
class CreditLimit:
    """The charge of one subject, and the sum of its credits as a positive amount.

    ``subject`` is "charge", "line" or "statement".
    """

    subject: str
    charged: Decimal
    credited: Decimal

    @property
    def left(self) -> Decimal:
        """Return the amount that may still be credited; at least 0."""
        return max(self.charged - self.credited, ZERO)


def check_credit(credit: Adjustment, states: Collection[str]) -> None:
    """Raise OperationRejected ``credit_above_charge`` if a credit is larger than the rest of a charge.

    Earlier credits count if their state is in ``states``. ``credit`` itself is not one of the earlier
    credits.
    """
    limit = smallest_limit(credit, states)
    if -credit.amount > limit.left:
        numbers = {
            "amount": str(credit.amount),
            "subject": limit.subject,
            "charged": str(limit.charged),
            "credited": str(limit.credited),
            "least": str(-limit.left),
            "currency": credit.currency,
        }
        raise OperationRejected("credit_above_charge", numbers, field="amount")


def smallest_limit(credit: Adjustment, states: Collection[str] = COUNTED) -> CreditLimit:
    """Return the limit with the smallest rest: of the charge line, its statement line, or the statement."""
    return min(_limits(credit, states), key=lambda limit: limit.left)


def _limits(credit: Adjustment, states: Collection[str]) -> list[CreditLimit]:
    others = Adjustment.objects.filter(
        kind=AdjustmentKindChoices.CREDIT, state__in=states, currency=credit.currency
    ).exclude(pk=credit.pk)
    limits = []
    if credit.charge is not None:
        limits.append(
            CreditLimit(
                "charge",
                charge_in_cents(credit.charge, credit.currency),
                _credited(others, charge=credit.charge),
            )
        )
    if credit.line is not None:
        limits.append(CreditLimit("line", credit.line.charged_cents, _credited(others, line=credit.line)))
    lines = StatementLine.objects.filter(
        statement=credit.credited, cost_centre=credit.cost_centre, currency=credit.currency
    ).exclude(bucket__in=ADJUSTMENT_BUCKETS)
    limits.append(
        CreditLimit(
            "statement",
            lines.aggregate(total=Sum("charged_cents"))["total"] or ZERO,
            _credited(others, credited=credit.credited, cost_centre=credit.cost_centre),
        )
    )
    return limits


def _credited(others: Any, **where: Any) -> Decimal:
    """Return the sum of credits as a positive amount. A withdrawn credit counts as 0."""
    return -(others.filter(**where).aggregate(total=Sum("amount"))["total"] or ZERO)


def charge_in_cents(charge: Charge, currency: str) -> Decimal:
    """Return the charge of a line, rounded down to cents; 0 if the line was reversed."""
    if charge.reversal or charge.corrections.filter(reversal=True).exists():
        return ZERO
    return round_down(charge.charged, smallest_unit(currency))


def line_of_charge(charge: Charge) -> StatementLine | None:
    """Return the statement line of a charge line; None in some months that version 0.1 closed."""
    return StatementLine.objects.filter(
        statement__month=charge.month,
        pool=charge.pool_id,
        cost_centre=charge.cost_centre,
        team=charge.team_id,
        project=charge.project_id,
        workload_type=charge.workload_type,
        model=charge.model,
        bucket=charge.bucket,
        corrected_month=charge.corrected_month,
        idle_share=False,
    ).first()
