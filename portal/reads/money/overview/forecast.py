"""Read the forecast of the charges that a viewer sees, and the budgets that limit them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

from portal import policy
from portal.models import Membership, User
from portal.reads.money.charge_scope import ChargeScope
from telemetry.budgets.commitments import committed_charges
from telemetry.budgets.organisation_forecast import forecast_month, month_range
from telemetry.core.amounts import ZERO
from telemetry.models import BudgetMeasure, BudgetPeriod, OrganisationForecast
from telemetry.money.billing_months import month_bounds, month_of
from telemetry.reads.budget_status import ForecastRange
from telemetry.reads.overview.day_totals import DayTotal

BudgetKind = Literal["cost_centre", "team", "project"]
# If there are budgets of several kinds, only those of the first kind count, because budgets of different
# kinds limit the same charges.
BUDGET_KINDS: tuple[BudgetKind, ...] = ("cost_centre", "team", "project")


@dataclass(frozen=True)
class BudgetSum:
    """The visible monthly budgets of one kind, in the currency of the month, as one amount.

    ``spent`` are the charges that count against them. ``covers_all`` is True if these are all charges that
    the viewer sees. Before the first charge, nothing says which charges will count, so it is False.
    ``exceeded`` has the names of the owners whose spending or forecast is above the budget.
    """

    kind: BudgetKind
    names: tuple[str, ...]
    amount: Decimal
    spent: Decimal
    covers_all: bool
    exceeded: tuple[str, ...]

    @property
    def left(self) -> Decimal:
        """Return the amount that is not spent yet; negative if more was spent."""
        return self.amount - self.spent


def budget_sum(rows: Sequence[dict[str, Any]], currency: str, charged: Decimal) -> BudgetSum | None:
    """Return the sum of the budgets of a month; None without one. ``rows`` are those of ``budget_rows``."""
    monthly = [row for row in rows if _is_of_month(row, currency)]
    for kind in BUDGET_KINDS:
        found = [row for row in monthly if _kind_of(row) == kind]
        if found:
            spent = sum((row["view"].spent for row in found), ZERO)
            return BudgetSum(
                kind,
                tuple(row["name"] for row in found),
                sum((row["view"].amount for row in found), ZERO),
                spent,
                _is_same(spent, charged),
                tuple(row["name"] for row in found if row["is_over"]),
            )
    return None


def _is_same(spent: Decimal, charged: Decimal) -> bool:
    """Return True if the charges that count against a budget are the charges that the viewer sees.

    Two sums of nothing are equal, whatever they are sums of.
    """
    return spent == charged != ZERO


def _is_of_month(row: dict[str, Any], currency: str) -> bool:
    budget = row["budget"]
    return bool(
        budget.period == BudgetPeriod.MONTH
        and budget.measure == BudgetMeasure.MONEY
        and budget.currency == currency
    )


def _kind_of(row: dict[str, Any]) -> BudgetKind:
    budget = row["budget"]
    return "cost_centre" if budget.cost_centre else "team" if budget.team_id else "project"


def month_forecast(
    viewer: User,
    month: date,
    now: datetime,
    scope: ChargeScope,
    rows: Sequence[DayTotal],
    budgets: Sequence[dict[str, Any]],
    charged: Decimal,
    currency: str,
) -> ForecastRange | None:
    """Return the forecast of the charges that the viewer sees, at the end of the present month.

    Return None for other months, and until three whole days are known. A viewer who sees all charges gets the
    stored forecast. If exactly one budget limits exactly the charges that the viewer sees, the result is the
    forecast of this budget. Otherwise it is computed from ``rows``, the days of the last months, and from the
    running work and the booked reservations of the viewer and of the teams that the viewer leads. No figure
    is below ``charged``.
    """
    if month != month_of(now):
        return None
    if scope.kind == "all":
        stored = OrganisationForecast.objects.filter(month=month, currency=currency).first()
        return None if stored is None else _range(stored, charged)
    same = [
        row["view"] for row in budgets if _is_of_month(row, currency) and _is_same(row["view"].spent, charged)
    ]
    if len(same) == 1 and same[0].range is not None:
        return _range(same[0].range, charged)
    spent: dict[date, float] = defaultdict(float)
    for row in rows:
        if row.currency == currency:
            spent[row.day] += float(row.charged)
    led = policy.my_team_ids(viewer, Membership.Role.LEAD).values_list("team_id", flat=True)
    committed = committed_charges(viewer.pk, list(led), now, month_bounds(month)[1])
    forecast = forecast_month(spent, committed, now)
    if forecast is None:
        return None
    figures = month_range(forecast, spent, charged, month, currency)
    return _range(
        ForecastRange(
            **figures,
            past_periods=forecast.past_periods,
            past_inside=forecast.past_inside,
            past_error=forecast.past_error,
        ),
        charged,
    )


def _range(stored: OrganisationForecast | ForecastRange, charged: Decimal) -> ForecastRange:
    return ForecastRange(
        expected=max(charged, stored.expected),
        low=max(charged, stored.low),
        high=max(charged, stored.high),
        past_periods=stored.past_periods,
        past_inside=stored.past_inside,
        past_error=stored.past_error,
    )
