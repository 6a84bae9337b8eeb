"""Read the charged amount and the state of each of the last months."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from django.db.models import F, QuerySet, Sum

from telemetry.core.amounts import ZERO
from telemetry.models import ChargeCell, Statement, StatementLine, StatementState
from telemetry.reads.chargeback import charged_lines

SHOWN_MONTHS = 12


@dataclass(frozen=True)
class MonthAmount:
    """The charges on the statement of a month in its currency, with the corrections of earlier months."""

    month: date
    charged: Decimal
    currency: str
    closed: bool


def month_amounts(
    first: date, last: date, cells: QuerySet[ChargeCell] | None, present_currency: str
) -> list[MonthAmount]:
    """Return the months from ``first`` to ``last`` that have a statement, and ``last``, oldest first.

    ``cells`` are the cells that the viewer may see; None means all. A month without a charge that the viewer
    sees has the amount 0. If ``last`` has no statement yet, its currency is ``present_currency``. Runs two
    queries.
    """
    found: QuerySet[Any] = StatementLine.objects.all() if cells is None else cells
    line = "" if cells is None else "line__"
    sums = (
        found.filter(
            charged_lines(line), statement__month__range=(first, last), **{f"{line}shared_out": False}
        )
        .order_by()
        .values(month=F("statement__month"), line_currency=F(f"{line}currency"))
        .annotate(charged_sum=Sum("charged_cents"))
    )
    charged = {(row["month"], row["line_currency"]): row["charged_sum"] for row in sums}
    states = {last: (present_currency, StatementState.OPEN)} | {
        month: (currency, state)
        for month, currency, state in Statement.objects.filter(month__range=(first, last)).values_list(
            "month", "currency", "state"
        )
    }
    return [
        MonthAmount(
            month,
            charged.get((month, currency), ZERO),
            currency,
            closed=state == StatementState.CLOSED,
        )
        for month, (currency, state) in sorted(states.items())
    ]
