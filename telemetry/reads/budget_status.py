"""Return the spending of each budget, with a forecast for the month."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from telemetry.core.amounts import round_amount
from telemetry.models import Budget, BudgetMeasure
from telemetry.money.billing_months import month_of
from telemetry.money.budgets import forecast_month_end, month_spend


@dataclass(frozen=True)
class BudgetStatus:
    """A budget and its spending, in the budget's measure, rounded to two decimals.

    ``share`` is the spent part of the amount; None if the amount is zero. ``forecast`` is the expected
    spending at the end of the month. It is None in the first three days of the month and after the month.
    """

    measure: str
    amount: Decimal
    spent: Decimal
    left: Decimal
    share: float | None
    forecast: Decimal | None
    action: str


def find_budget_status(
    month: date,
    now: datetime,
    *,
    team: int | None = None,
    project: int | None = None,
    measure: str = BudgetMeasure.MONEY,
) -> BudgetStatus | None:
    """Return the status of a team's or a project's budget for a month; None if there is no such budget."""
    budget = Budget.objects.filter(month=month, team=team, project=project, measure=measure).first()
    return None if budget is None else budget_status(budget, now)


def budget_status(budget: Budget, now: datetime) -> BudgetStatus:
    """Return the status of a budget."""
    spent = month_spend(budget.month, budget.measure, team=budget.team_id, project=budget.project_id)
    return BudgetStatus(
        measure=budget.measure,
        amount=budget.amount,
        spent=round_amount(spent),
        left=round_amount(budget.amount - spent),
        share=float(spent / budget.amount) if budget.amount else None,
        forecast=forecast_month_end(spent, now) if budget.month == month_of(now) else None,
        action=budget.action,
    )


def forecast_spend(
    month: date, now: datetime, *, team: int | None = None, project: int | None = None
) -> Decimal | None:
    """Return the expected charges of a team or a project at the end of ``month``.

    Returns None in the first three days of the month, and if ``month`` is not the current month.
    """
    if month != month_of(now):
        return None
    return forecast_month_end(month_spend(month, BudgetMeasure.MONEY, team=team, project=project), now)
