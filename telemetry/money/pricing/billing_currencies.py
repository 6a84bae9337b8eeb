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
    """Return the currency of a month. A closed month keeps the currency of its statement."""
    closed = Statement.objects.filter(month=month, state=StatementState.CLOSED).exclude(currency="")
    return closed.values_list("currency", flat=True).first() or load_billing_currencies().of(month)
