"""Return the spending of each budget, with a forecast for its period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from telemetry.budgets.budget_checks import budget_query
from telemetry.budgets.budget_periods import period_end
from telemetry.budgets.spending import period_spends, scope_of
from telemetry.core.amounts import round_amount
from telemetry.core.currencies import smallest_unit
from telemetry.models import Budget, BudgetForecast, BudgetMeasure, BudgetPeriod


@dataclass(frozen=True)
class ForecastRange:
    """The expected spending at the end of a period, with the 10th and the 90th percentile.

    ``past_periods`` is the number of earlier periods with a forecast by the same method. ``past_inside`` is
    the number of these periods that ended inside their range. ``past_error`` is the median error of their
    forecasts, as a part of the real spending; None if it is unknown.
    """

    expected: Decimal
    low: Decimal
    high: Decimal
    past_periods: int
    past_inside: int
    past_error: float | None


@dataclass(frozen=True)
class BudgetStatus:
    """A budget and its spending, in the budget's measure, rounded to the decimals of its currency.

    ``unit`` is the currency of a budget in money, else "gpu_hours".

    ``share`` is the spent part of the amount; None if the amount is zero. ``range`` is the forecast for the
    end of the period. It is None before the first days of spending are known and after the period.
    """

    measure: str
    unit: str
    period: str
    amount: Decimal
    spent: Decimal
    left: Decimal
    share: float | None
    range: ForecastRange | None
    action: str

    @property
    def forecast(self) -> Decimal | None:
        """Return the expected spending at the end of the period; None without a forecast."""
        return None if self.range is None else self.range.expected


def find_budget_status(
    month: date,
    now: datetime,
    *,
    team: int | None = None,
    project: int | None = None,
    measure: str = BudgetMeasure.MONEY,
) -> BudgetStatus | None:
    """Return the status of a team's or a project's budget for a month; None if there is no such budget."""
    budget = Budget.objects.filter(
        period=BudgetPeriod.MONTH, month=month, team=team, project=project, measure=measure
    ).first()
    return None if budget is None else budget_statuses([budget], now)[budget.pk]


def budget_statuses(
    budgets: Iterable[Budget], now: datetime, forecasts: Mapping[int, BudgetForecast | None] | None = None
) -> dict[int, BudgetStatus]:
    """Return the status of each budget by its id.

    The forecasts are those that the budget check stored last. ``forecasts`` has them by the id of the budget,
    if the caller has read them. Runs one query for all forecasts and one for all spending.
    """
    budgets = list(budgets)
    if forecasts is None:
        forecasts = BudgetForecast.objects.in_bulk([budget.pk for budget in budgets])
    spending = period_spends([budget_query(budget) for budget in budgets])
    return {
        budget.pk: _status(budget, exact, forecasts.get(budget.pk), now)
        for budget, exact in zip(budgets, spending, strict=True)
    }


def _status(budget: Budget, exact: Decimal, forecast: BudgetForecast | None, now: datetime) -> BudgetStatus:
    step = smallest_unit(scope_of(budget).currency)
    spent = round_amount(exact, step)
    is_over = now >= period_end(budget.period, budget.month)
    return BudgetStatus(
        measure=budget.measure,
        unit=budget.currency if budget.measure == BudgetMeasure.MONEY else budget.measure,
        period=budget.period,
        amount=budget.amount,
        spent=spent,
        left=round_amount(budget.amount - exact, step),
        share=float(exact / budget.amount) if budget.amount else None,
        range=None if forecast is None or is_over else _range(forecast, spent),
        action=budget.action,
    )


def _range(forecast: BudgetForecast, spent: Decimal) -> ForecastRange:
    """Return a stored forecast, with each figure raised to ``spent`` if it is lower."""
    return ForecastRange(
        expected=max(spent, forecast.expected),
        low=max(spent, forecast.low),
        high=max(spent, forecast.high),
        past_periods=forecast.past_periods,
        past_inside=forecast.past_inside,
        past_error=forecast.past_error,
    )
