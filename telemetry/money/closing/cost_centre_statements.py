"""Make one numbered statement per cost centre when a month is closed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal

from django.db.models import Q, Sum

from telemetry.models import Budget, BudgetMeasure, BudgetPeriod, CostCentreStatement, Statement


@dataclass(frozen=True)
class StatementTerms:
    """The organisation's texts and terms that a close copies into its statements.

    ``issuer`` is the name of the organisation. A statement is due ``payment_days`` after the close.
    """

    issuer: str = ""
    tax_text: str = ""
    payment_days: int = 30


def make_documents(
    statement: Statement, currency: str, terms: StatementTerms, closed_on: date
) -> list[CostCentreStatement]:
    """Make the statements of all cost centres that have a line in a closing month, sorted by code.

    The total of each is the sum of the cents of its lines. ``closed_on`` is the day of the close.
    """
    budgets = dict(
        Budget.objects.filter(
            month=statement.month, period=BudgetPeriod.MONTH, measure=BudgetMeasure.MONEY
        ).values_list("cost_centre", "amount")
    )
    made = [
        CostCentreStatement(
            statement=statement,
            cost_centre=code,
            currency=currency,
            sequence=1,
            number=document_number(statement.month, code, 1),
            issuer=terms.issuer,
            tax_text=terms.tax_text,
            due_on=closed_on + timedelta(days=terms.payment_days),
            total=total,
            budget=budgets.get(code),
        )
        for code, total in cost_centre_totals(statement)
    ]
    return CostCentreStatement.objects.bulk_create(made)


def cost_centre_totals(statement: Statement) -> list[tuple[str, Decimal]]:
    """Return the charge of each cost centre that has a line in a month, in order of the codes."""
    lines = statement.lines.filter(shared_out=False).exclude(cost_centre="")
    # Reversed charges can leave a line without anything.
    lines = lines.exclude(Q(slot_seconds=0, charged_cents=0, cost_cents=0))
    totals = lines.values_list("cost_centre").annotate(total=Sum("charged_cents"))
    return list(totals.order_by("cost_centre"))


def document_number(month: date, cost_centre: str, sequence: int) -> str:
    """Return the number of a statement, such as ``2026-10/CC-4110/1``.

    ``sequence`` is 1 for the first currency of the month and cost centre, and counts up per currency.
    """
    return f"{month:%Y-%m}/{cost_centre}/{sequence}"
