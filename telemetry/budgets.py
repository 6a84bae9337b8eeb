"""What was spent against budgets: alerts at thresholds, and the engine's gates closed and opened."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from django.db import transaction
from django.db.models import Sum

from scheduler.models import BudgetGate, Project, Team
from scheduler.services.gates import close_budget_gate, open_budget_gate
from telemetry.core.money import ZERO, rounded
from telemetry.models import Budget, BudgetAction, BudgetAlert, Charge
from telemetry.months import bounds, month_of

THRESHOLDS = (50, 80, 100)
USED_UP = 100
FORECAST_AFTER = timedelta(days=3)  # the first days of a month say little about its end


def watch_budgets(now: datetime) -> int:
    """Compare each budget of this month with what was spent; the number of new alerts. Gates follow the budgets' actions."""
    month = month_of(now)
    alerts = 0
    wanted: set[tuple[int | None, int | None, str]] = set()
    for budget in Budget.objects.filter(month=month).select_related("team", "project"):
        spent = spent_of(budget)
        alerts += _alert(budget, spent, now)
        if budget.action != BudgetAction.NOTIFY and spent >= budget.amount:
            wanted.add((budget.team_id, budget.project_id, budget.action))
            close_budget_gate(
                action=budget.action,
                numbers={"limit": str(budget.amount), "spent": str(rounded(spent)), "month": month.isoformat()},
                until=bounds(month)[1],
                now=now,
                team=budget.team,
                project=budget.project,
            )
    _open_others(wanted)
    return alerts


def spent_of(budget: Budget) -> Decimal:
    """What its team or project was charged for on the month's statement so far, in ledger decimals."""
    lines = Charge.objects.filter(month=budget.month)
    lines = lines.filter(team=budget.team_id) if budget.team_id else lines.filter(project=budget.project_id)
    return lines.aggregate(total=Sum("charged"))["total"] or ZERO


def forecast_of(spent: Decimal, now: datetime) -> Decimal | None:
    """What this month comes to when it goes on as it began; None in its first days."""
    start, end = bounds(month_of(now))
    gone = now - start
    if gone < FORECAST_AFTER:
        return None
    return rounded(spent * Decimal(int((end - start).total_seconds())) / Decimal(int(gone.total_seconds())))


def _alert(budget: Budget, spent: Decimal, now: datetime) -> int:
    passed = [(step, False) for step in THRESHOLDS if spent * 100 >= budget.amount * step and budget.amount > 0]
    expected = forecast_of(spent, now)
    if expected is not None and budget.amount > 0 and spent < budget.amount < expected:
        passed.append((USED_UP, True))
    new = [
        BudgetAlert.objects.get_or_create(
            budget=budget, percent=step, forecast=forecast, defaults={"spent": spent, "at": now}
        )[1]
        for step, forecast in passed
    ]
    reached = max((step for step, forecast in passed if not forecast), default=0)
    Budget.objects.filter(pk=budget.pk).exclude(notified_percent=reached).update(notified_percent=reached)
    return sum(new)


@transaction.atomic
def _open_others(wanted: set[tuple[int | None, int | None, str]]) -> None:
    """Open the gates that no used-up budget keeps closed: the budget was raised, changed, or its month is over."""
    gates = BudgetGate.objects.values_list("team", "project", "action")
    for team, project, action in set(gates) - wanted:
        open_budget_gate(
            action=action,
            team=Team.objects.filter(pk=team).first(),
            project=Project.objects.filter(pk=project).first(),
        )
