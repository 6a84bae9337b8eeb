"""Return what was spent of each budget, with a forecast for the month."""

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
    """A budget and where it stands, in its measure and to the hundredth. ``forecast_spend`` None: too early in the month to say, or the
    month is over."""

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
    """The budget of a team or a project for a month and where it stands; None when it has none in that measure."""
    budget = Budget.objects.filter(month=month, team=team, project=project, measure=measure).first()
    return None if budget is None else budget_status(budget, now)


def budget_status(budget: Budget, now: datetime) -> BudgetStatus:
    """Where a budget stands."""
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
    """What the month comes to when it goes on as it began; None in its first three days and for a month that is not this one."""
    if month != month_of(now):
        return None
    return forecast_month_end(month_spend(month, BudgetMeasure.MONEY, team=team, project=project), now)
