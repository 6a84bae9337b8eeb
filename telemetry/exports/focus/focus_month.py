"""Read the facts that all rows of the FOCUS files of a month share: period, issuer and invoices."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal

from django.db.models import Q, Sum

from telemetry.core.amounts import ZERO
from telemetry.models import Charge, CostCentreStatement, Statement, StatementState
from telemetry.money.billing_months import month_bounds

# The issuer of months that version 0.1 closed. Their statements do not keep the name of the organisation.
UNNAMED_ISSUER = "gpupool"


@dataclass(frozen=True)
class FocusInvoice:
    """The invoice of a cost centre in one currency: its numbered statement, or in an open month the charges
    so far.

    ``total`` is the sum of the cents of its statement lines. ``rounding`` is ``total`` minus the charges of
    these lines with six decimals.
    """

    number: str
    cost_centre: str
    currency: str
    name: str | None
    total: Decimal
    rounding: Decimal
    purchase_order: str | None = None
    due_at: datetime | None = None
    payment_terms: str = "Net 0"


@dataclass(frozen=True)
class FocusMonth:
    """A month as FOCUS files show it. A closed month has only values that its close has frozen.

    ``corrected`` maps each closed month that the month corrects to its bounds.
    """

    month: date
    start: datetime
    end: datetime
    statement: Statement | None
    issuer: str
    currency: str
    updated_at: datetime
    invoices: tuple[FocusInvoice, ...]
    corrected: dict[date, tuple[datetime, datetime]]

    @property
    def is_closed(self) -> bool:
        return self.statement is not None and self.statement.state == StatementState.CLOSED


def load_focus_month(month: date, *, issuer: str, currency: str) -> FocusMonth:
    """Return the facts of a month. ``issuer`` and ``currency`` are used for a month that is not closed."""
    start, end = month_bounds(month)
    statement = Statement.objects.filter(month=month).first()
    invoices: list[FocusInvoice] = []
    updated_at = start
    corrected: list[date] = []
    if statement is not None:
        sums = _sums_by_cost_centre(statement)
        months = statement.lines.exclude(corrected_month=None).values_list("corrected_month", flat=True)
        corrected = sorted({each for each in months if each})
        if statement.state == StatementState.CLOSED:
            currency, updated_at = statement.currency, statement.closed_at or end
            documents = list(statement.documents.order_by("number"))
            issuer = documents[0].issuer if documents and documents[0].issuer else UNNAMED_ISSUER
            invoices = [
                _issued(each, sums[each.cost_centre, each.currency][1], updated_at) for each in documents
            ]
        else:
            newest = Charge.objects.filter(month=month).order_by("-pk").first()
            updated_at = newest.created_at if newest else start
            invoices = [
                FocusInvoice(
                    _provisional_number(month, code, unit, currency), code, unit, None, total, total - charged
                )
                for (code, unit), (total, charged) in sorted(sums.items())
            ]
    return FocusMonth(
        month,
        start,
        end,
        statement,
        issuer,
        currency,
        max(updated_at, start),
        tuple(invoices),
        {each: month_bounds(each) for each in corrected},
    )


def _provisional_number(month: date, code: str, currency: str, usual: str) -> str:
    """Return the number of an open month's invoice. Corrections in another currency have their own."""
    return f"{month:%Y-%m}/{code}/provisional{'' if currency == usual else f'-{currency}'}"


def _sums_by_cost_centre(statement: Statement) -> dict[tuple[str, str], tuple[Decimal, Decimal]]:
    """Return (sum of cents, sum with six decimals) of the invoiced lines of each cost centre and currency."""
    lines = statement.lines.filter(shared_out=False).exclude(cost_centre="")
    # Reversed charges can leave a line without anything, or with less than half a cent.
    lines = lines.exclude(Q(slot_seconds=0, charged_cents=0, cost_cents=0, charged=0))
    sums = lines.values_list("cost_centre", "currency").annotate(
        cents=Sum("charged_cents", filter=Q(showback=False), default=ZERO),
        exact=Sum("charged", filter=Q(showback=False), default=ZERO),
    )
    return {(code, currency): (cents, exact) for code, currency, cents, exact in sums.order_by()}


def _issued(document: CostCentreStatement, charged: Decimal, issued_at: datetime) -> FocusInvoice:
    days = (document.due_on - issued_at.astimezone(UTC).date()).days
    return FocusInvoice(
        document.number,
        document.cost_centre,
        document.currency,
        document.name or None,
        document.total,
        document.total - charged,
        document.purchase_order or None,
        datetime.combine(document.due_on, time(), UTC),
        f"Net {max(days, 0)}",
    )


def reference_numbers(corrected: Collection[date]) -> dict[tuple[date, str, str], str]:
    """Return the number of each corrected statement, by month, cost centre and currency."""
    rows = CostCentreStatement.objects.filter(statement__month__in=corrected)
    columns = rows.values_list("statement__month", "cost_centre", "currency", "number")
    return {(month, code, currency): number for month, code, currency, number in columns}
