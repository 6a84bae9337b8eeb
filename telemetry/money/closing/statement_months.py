"""Read the state and the currency of all months at once, for pages that need them in many places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from django.db.models import CharField, Value

from telemetry.models import BillingCurrency, Charge, Statement, StatementState
from telemetry.money.pricing.billing_currencies import BillingCurrencies

# The states of rows without a statement: the start of a currency, and the first month with a charge.
_CURRENCY, _FIRST_CHARGE = "", "first charge"


@dataclass(frozen=True)
class StatementMonth:
    """The state and the currency of one statement."""

    state: str
    currency: str


class StatementMonths:
    """The statements of all months without their large columns, and the currencies of months.

    All of them were read at one moment. A request reads them once and passes them on. ``first_charged`` is
    the first month with a charge; None before the first charge.
    """

    def __init__(
        self,
        statements: Mapping[date, StatementMonth],
        currencies: BillingCurrencies,
        first_charged: date | None,
    ) -> None:
        self.statements = dict(sorted(statements.items()))
        self.first_charged = first_charged
        self._currencies = currencies

    def has_statement(self, month: date) -> bool:
        """Return True if the month has a statement."""
        return month in self.statements

    def is_closed(self, month: date) -> bool:
        """Return True if the statement of the month is closed."""
        found = self.statements.get(month)
        return found is not None and found.state == StatementState.CLOSED

    def currency_of(self, month: date) -> str:
        """Return the currency of a month, as ``currency_of_month`` does."""
        stored = self.statements[month].currency if self.is_closed(month) else ""
        return stored or self._currencies.of(month)

    def open_before(self, month: date) -> list[date]:
        """Return the months before ``month`` whose statements are open, oldest first."""
        return [
            each
            for each, statement in self.statements.items()
            if each < month and statement.state == StatementState.OPEN
        ]


def load_statement_months() -> StatementMonths:
    """Return the statements of all months. Runs one query."""
    statements = Statement.objects.order_by().values_list("month", "state", "currency")
    currencies = BillingCurrency.objects.order_by().annotate(kind=_text(_CURRENCY))
    first = Charge.objects.order_by("month").annotate(kind=_text(_FIRST_CHARGE), none=_text(""))
    rows = list(
        statements.union(
            currencies.values_list("first_month", "kind", "currency"),
            first.values_list("month", "kind", "none")[:1],
            all=True,
        )
    )
    by_kind = {kind: [row for row in rows if row[1] == kind] for kind in (_CURRENCY, _FIRST_CHARGE)}
    return StatementMonths(
        {month: StatementMonth(state, currency) for month, state, currency in rows if state not in by_kind},
        BillingCurrencies((month, currency) for month, _, currency in by_kind[_CURRENCY]),
        next((month for month, _, _ in by_kind[_FIRST_CHARGE]), None),
    )


def _text(value: str) -> Value:
    return Value(value, output_field=CharField())
