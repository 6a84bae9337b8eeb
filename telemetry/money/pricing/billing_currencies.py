"""Find the currency of a month. All use of a month is charged in one currency.

Corrections of a closed month keep the currency of that month. They have separate statement lines and totals.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import date, datetime

from django.db.models import Subquery, Value
from django.db.models.functions import Coalesce

from telemetry.core.currencies import DEFAULT_CURRENCY
from telemetry.models import BillingCurrency, Statement, StatementState


class BillingCurrencies:
    """The currencies of all months, from the rows of BillingCurrency."""

    def __init__(self, rows: Iterable[tuple[date, str]]) -> None:
        """Read ``rows``: pairs of the first month and the currency."""
        self._rows = sorted(rows)

    def of(self, month: date) -> str:
        """Return the currency of a month. Without a row for it, return the default currency."""
        position = bisect_right([first for first, _ in self._rows], month)
        return self._rows[position - 1][1] if position else DEFAULT_CURRENCY


def load_billing_currencies() -> BillingCurrencies:
    """Return the currency of each month. Runs one query."""
    return BillingCurrencies(BillingCurrency.objects.values_list("first_month", "currency"))


def currency_at(moment: datetime) -> Coalesce:
    """Return the SQL expression for the currency of the month that contains ``moment``."""
    started = BillingCurrency.objects.filter(valid_from__lte=moment).order_by("-valid_from")
    return Coalesce(Subquery(started.values("currency")[:1]), Value(DEFAULT_CURRENCY))


def currency_of_month(month: date) -> str:
    """Return the currency of a month. A closed month keeps the currency of its statement. Runs one query."""
    closed = Statement.objects.filter(month=month, state=StatementState.CLOSED).exclude(currency="")
    started = BillingCurrency.objects.filter(first_month__lte=month).order_by("-first_month")
    found = closed.annotate(rank=Value(0)).values_list("rank", "currency")
    rows = found.union(started.annotate(rank=Value(1)).values_list("rank", "currency")[:1])
    return min(rows, default=(0, DEFAULT_CURRENCY))[1]
