"""Read the statements of cost centres that a viewer may see."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from django.db.models import QuerySet

from portal import policy
from portal.models import User
from portal.wording.pages.money import correction_texts
from telemetry.core.amounts import ZERO
from telemetry.models import CostCentreStatement
from telemetry.reads.corrections import correction_blocks


def visible_documents(viewer: User, month: date | None = None) -> QuerySet[CostCentreStatement]:
    """Return the visible statements of cost centres, newest month first. ``month`` selects one month."""
    rows = policy.visible_documents(viewer).select_related("statement__closed_by", "statement__proposed_by")
    if month is not None:
        rows = rows.filter(statement__month=month)
    return rows.order_by("-statement__month", "cost_centre", "sequence")


def document_months(viewer: User) -> list[date]:
    """Return the months with a visible statement, newest first."""
    months = policy.visible_documents(viewer).values_list("statement__month", flat=True).distinct()
    return list(months.order_by("-statement__month"))


def totals_by_currency(rows: QuerySet[CostCentreStatement]) -> dict[str, Decimal]:
    """Return the total of the statements by currency. Amounts in two currencies are never added."""
    totals: dict[str, Decimal] = {}
    for row in rows:
        totals[row.currency] = totals.get(row.currency, ZERO) + row.total
    return totals


def neighbours(viewer: User, document: CostCentreStatement) -> dict[str, CostCentreStatement | None]:
    """Return the previous and the next visible statement of the same month, in order of the cost centres."""
    rows = list(visible_documents(viewer, document.statement.month))
    place = rows.index(document)
    return {
        "previous": rows[place - 1] if place else None,
        "next": rows[place + 1] if place + 1 < len(rows) else None,
    }


def correction_reasons(document: CostCentreStatement) -> dict[date, str]:
    """Return the late facts behind the corrections of a statement, by corrected month."""
    blocks = correction_blocks(document.statement.month, cost_centre=document.cost_centre)
    return {
        block.corrected_month: "; ".join(correction_texts.cause_sentence(*cause) for cause in block.causes)
        or correction_texts.UNKNOWN_CAUSE
        for block in blocks
    }
