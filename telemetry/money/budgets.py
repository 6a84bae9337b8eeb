"""Compare spending with budgets: record alerts at thresholds, and close or open the budget gates.

A closed budget gate refuses new work, or stops borrowing, of a team or project with an exhausted budget.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal

from django.db import transaction
from django.db.models import Sum

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from scheduler.models import BudgetGate, Project, Team
from scheduler.services.budget_gates import close_budget_gate, open_budget_gate
from telemetry.core.amounts import MICRO, ZERO, round_amount
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.models import Budget, BudgetAction, BudgetAlert, BudgetMeasure, Charge
from telemetry.money.billing_months import month_bounds, month_of

ALERT_PERCENTS = (50, 80, 100)
USED_UP_PERCENT = 100
FORECAST_MIN_ELAPSED = timedelta(days=3)  # a forecast from a shorter time is not reliable


def check_budgets(now: datetime) -> int:
    """Check every budget of the month that contains ``now``. Return the number of new alerts.

    Records an alert for each threshold that was passed. Closes the gates of exhausted budgets, and opens all
    other gates.
    """
    month = month_of(now)
    alerts = 0
    required_gates: set[tuple[int | None, int | None, str]] = set()
    # Money budgets come first: if the budgets of both measures are exhausted, the gate names the money
    # budget.
    for budget in (
        Budget.objects.filter(month=month).select_related("team", "project").order_by("-measure", "pk")
    ):
        spent = month_spend(month, budget.measure, team=budget.team_id, project=budget.project_id)
        alerts += _record_alerts(budget, spent, now)
        gate = (budget.team_id, budget.project_id, budget.action)
        if budget.action != BudgetAction.NOTIFY and spent >= budget.amount and gate not in required_gates:
            required_gates.add(gate)
            close_budget_gate(
                action=budget.action,
                numbers={
                    "limit": str(budget.amount),
                    "spent": str(round_amount(spent)),
                    "month": month.isoformat(),
                    "measure": budget.measure,
                },
                until=month_bounds(month)[1],
                now=now,
                team=budget.team,
                project=budget.project,
            )
    _open_unneeded_gates(required_gates)
    return alerts


def month_spend(month: date, measure: str, *, team: int | None = None, project: int | None = None) -> Decimal:
    """Return the charged money or the charged GPU-hours of a team or a project in a month.

    ``measure`` is a value of BudgetMeasure. The caller passes either ``team`` or ``project``.
    """
    lines = Charge.objects.filter(month=month, bucket__in=CHARGED_BUCKETS)
    lines = lines.filter(team=team) if team is not None else lines.filter(project=project)
    if measure == BudgetMeasure.GPU_HOURS:
        return Decimal(lines.aggregate(total=Sum("slot_seconds"))["total"] or 0) / SLOT_SECONDS_PER_GPU_HOUR
    return lines.aggregate(total=Sum("charged"))["total"] or ZERO


def forecast_month_end(spent: Decimal, now: datetime) -> Decimal | None:
    """Return the expected spending at the end of the month, if the mean rate of spending stays the same.

    Returns None before FORECAST_MIN_ELAPSED of the month has passed.
    """
    start, end = month_bounds(month_of(now))
    elapsed = now - start
    if elapsed < FORECAST_MIN_ELAPSED:
        return None
    return round_amount(
        spent * Decimal(int((end - start).total_seconds())) / Decimal(int(elapsed.total_seconds()))
    )


def _record_alerts(budget: Budget, spent: Decimal, now: datetime) -> int:
    """Record an alert for each threshold that was passed for the first time. Return the number of new alerts.

    A forecast above the budget is also recorded, as a forecast of 100 percent.
    """
    passed = [
        (step, False) for step in ALERT_PERCENTS if spent * 100 >= budget.amount * step and budget.amount > 0
    ]
    expected = forecast_month_end(spent, now)
    if expected is not None and budget.amount > 0 and spent < budget.amount < expected:
        passed.append((USED_UP_PERCENT, True))
    new = [
        BudgetAlert.objects.get_or_create(
            budget=budget,
            percent=step,
            forecast=forecast,
            defaults={"spent": round_amount(spent, MICRO), "at": now},
        )[1]
        for step, forecast in passed
    ]
    reached = max((step for step, forecast in passed if not forecast), default=0)
    Budget.objects.filter(pk=budget.pk).exclude(notified_percent=reached).update(notified_percent=reached)
    return sum(new)


@transaction.atomic
def _open_unneeded_gates(required_gates: set[tuple[int | None, int | None, str]]) -> None:
    """Open every closed gate that is not in ``required_gates``: (team id, project id, action).

    The budget of such a gate is no longer exhausted, because the budget changed or its month is over.
    """
    gates = BudgetGate.objects.values_list("team", "project", "action")
    for team, project, action in set(gates) - required_gates:
        open_budget_gate(
            action=action,
            team=Team.with_removed.filter(pk=team).first(),
            project=Project.objects.filter(pk=project).first(),
        )
