"""Make one numbered statement per cost centre when a month is closed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal

from django.db.models import Q, Sum

from telemetry.core.amounts import ZERO
from telemetry.models import (
    Budget,
    BudgetMeasure,
    BudgetPeriod,
    CostCentre,
    CostCentreStatement,
    Statement,
)


@dataclass(frozen=True)
class StatementTerms:
    """The organisation's texts and terms that a close copies into its statements.

    ``issuer`` is the name of the organisation. A statement is due ``payment_days`` after the close.
    """

    issuer: str = ""
    tax_text: str = ""
    payment_days: int = 30


def make_documents(statement: Statement, terms: StatementTerms, closed_on: date) -> list[CostCentreStatement]:
    """Make the statements of all cost centres that have a line in a closing month, sorted by code.

    A cost centre gets one statement for each currency of its lines, first the statement in the currency of
    the month. The total of a statement is the sum of the cents of its lines. ``closed_on`` is the day of the
    close.
    """
    sequences: Counter[str] = Counter()
    budgets = {
        (code, currency): amount
        for code, currency, amount in Budget.objects.filter(
            month=statement.month, period=BudgetPeriod.MONTH, measure=BudgetMeasure.MONEY
        ).values_list("cost_centre", "currency", "amount")
    }
    entries = {row.code: row for row in CostCentre.objects.all()}
    made = []
    for code, currency, total in cost_centre_totals(statement):
        sequences[code] += 1
        document = CostCentreStatement(
            statement=statement,
            cost_centre=code,
            currency=currency,
            sequence=sequences[code],
            number=document_number(statement.month, code, sequences[code]),
            **_entry(entries.get(code)),
            issuer=terms.issuer,
            tax_text=terms.tax_text,
            due_on=closed_on + timedelta(days=terms.payment_days),
            total=total,
            budget=budgets.get((code, currency)),
        )
        made.append(document)
    return CostCentreStatement.objects.bulk_create(made)


def cost_centre_totals(statement: Statement) -> list[tuple[str, str, Decimal]]:
    """Return (code, currency, total) of each cost centre that has a line in a month, in order of the codes.

    The total is the charge that is invoiced. Lines of showback do not count. If a cost centre has several
    currencies, the currency of the month comes first.
    """
    lines = statement.lines.filter(shared_out=False).exclude(cost_centre="")
    # If all charges of a line are reversed, the line is empty.
    lines = lines.exclude(Q(slot_seconds=0, charged_cents=0, cost_cents=0))
    invoiced = Sum("charged_cents", filter=Q(showback=False), default=ZERO)
    totals = lines.values_list("cost_centre", "currency").annotate(total=invoiced)
    return sorted(totals, key=lambda row: (row[0], row[1] != statement.currency, row[1]))


def _entry(row: CostCentre | None) -> dict[str, str]:
    """Return the texts that a statement copies from the directory of cost centres."""
    if row is None:
        return {}
    return {"name": row.name, "postal_address": row.postal_address, "purchase_order": row.purchase_order}


def document_number(month: date, cost_centre: str, sequence: int) -> str:
    """Return the number of a statement, such as ``2026-10/CC-4110/1``.

    ``sequence`` counts the currencies of the cost centre in the month, from 1 on.
    """
    return f"{month:%Y-%m}/{cost_centre}/{sequence}"
