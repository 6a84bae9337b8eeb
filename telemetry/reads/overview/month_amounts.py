"""Return the charged amount and the state of each of the last months."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from telemetry.core.amounts import ZERO
from telemetry.money.closing.statement_months import StatementMonths
from telemetry.reads.overview.day_totals import DayTotal

SHOWN_MONTHS = 12


@dataclass(frozen=True)
class MonthAmount:
    """The charges on the statement of a month in its currency, with the corrections of earlier months."""

    month: date
    charged: Decimal
    currency: str
    closed: bool


def month_amounts(
    first: date, last: date, days: Iterable[DayTotal], statements: StatementMonths, present_currency: str
) -> list[MonthAmount]:
    """Return the months from ``first`` to ``last`` that have a statement, and ``last``, oldest first.

    ``days`` are the visible charges of these months, and ``statements`` the statements of all months.
    A month without a charge that the viewer sees has the amount 0. If ``last`` has no statement yet, its
    currency is ``present_currency``.
    """
    charged: dict[tuple[date, str], Decimal] = defaultdict(Decimal)
    for day in days:
        charged[day.month, day.currency] += day.charged
    currencies = {last: present_currency} | {
        month: statement.currency
        for month, statement in statements.statements.items()
        if first <= month <= last
    }
    return [
        MonthAmount(month, charged.get((month, currency), ZERO), currency, closed=statements.is_closed(month))
        for month, currency in sorted(currencies.items())
    ]
