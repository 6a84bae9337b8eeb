"""Compare spending with budgets: record alerts at thresholds, and close or open the budget gates.

If the budget of a team or project is exhausted, its gate is closed: the gate refuses new work or prevents
borrowing. An exhausted budget can also stop running work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import Q

from scheduler.models import BudgetGate, Project, Team
from scheduler.services.budget_gates import close_budget_gate, open_budget_gate, stop_running_work
from telemetry.budgets.accruals import uncharged_spend
from telemetry.budgets.budget_forecasts import refresh_budget_forecasts
from telemetry.budgets.budget_periods import next_period, period_end, period_of
from telemetry.budgets.organisation_forecast import refresh_organisation_forecast
from telemetry.budgets.spending import PeriodSpendQuery, period_spends, scope_of
from telemetry.core.amounts import MICRO, round_amount
from telemetry.core.currencies import smallest_unit
from telemetry.cost_centres.splits import load_all_splits
from telemetry.models import Budget, BudgetAction, BudgetAlert, BudgetForecast, BudgetMeasure, BudgetPeriod
from telemetry.money.billing_months import billing_calendar

ALERT_PERCENTS = (50, 80, 100)
USED_UP_PERCENT = 100
GateKey = tuple[int | None, int | None, str]  # team id, project id, action of the gate


def check_budgets(now: datetime) -> int:
    """Check every budget whose period contains ``now``. Return the number of new alerts.

    Spending includes the time since the last charge lines. Records an alert for each threshold that was
    passed. Closes the gates of exhausted budgets, and opens all other gates. If an exhausted budget has the
    action STOP_RUNNING, the running work that it covers is stopped. Also
    refreshes the forecast of all charges.
    """
    refresh_organisation_forecast(now)
    budgets = list(current_budgets(now))
    forecasts = refresh_budget_forecasts(budgets, now)
    scopes = {scope_of(budget) for budget in budgets}
    uncharged = {
        measure: uncharged_spend(scopes, measure, now) for measure in {row.measure for row in budgets}
    }
    alerts = 0
    exhausted: list[tuple[Budget, Decimal]] = []
    for budget in budgets:
        spent = budget_spend(budget) + uncharged[budget.measure][scope_of(budget)]
        alerts += _record_alerts(budget, spent, forecasts.get(budget.pk), now)
        if budget.action != BudgetAction.NOTIFY and spent >= budget.amount:
            exhausted.append((budget, spent))
    _set_gates(exhausted, now)
    return alerts


def current_budgets(now: datetime) -> Iterable[Budget]:
    """Return the budgets whose month, quarter or year contains ``now``."""
    today = billing_calendar().day_of(now)
    current = Q()
    for period in BudgetPeriod.values:
        current |= Q(period=period, month=period_of(period, today))
    return Budget.objects.filter(current).select_related("team", "project").order_by("pk")


def budget_spend(budget: Budget) -> Decimal:
    """Return the spending in a budget's period so far, in the budget's measure."""
    return period_spends([budget_query(budget)])[0]


def budget_query(budget: Budget) -> PeriodSpendQuery:
    """Return the query of the spending in a budget's period."""
    following = next_period(budget.period, budget.month)
    return PeriodSpendQuery(scope_of(budget), budget.measure, budget.month, following)


def _set_gates(exhausted: Sequence[tuple[Budget, Decimal]], now: datetime) -> None:
    """Close the gates of exhausted budgets, and open all other gates.

    ``exhausted`` has each exhausted budget with its spending. If several budgets close the same gate, the
    gate names the budget whose period ends last. If several of these periods end together, the gate names a
    budget in money.
    """
    paid = _projects_by_cost_centre(now)
    required: dict[GateKey, tuple[Budget, Decimal]] = {}
    for budget, spent in sorted(
        exhausted,
        key=lambda pair: (
            period_end(pair[0].period, pair[0].month),
            pair[0].measure == BudgetMeasure.MONEY,
            -pair[0].pk,
        ),
        reverse=True,
    ):
        for team, project in _gate_owners(budget, paid):
            required.setdefault((team, project, _gate_action(budget)), (budget, spent))
    teams = Team.with_removed.in_bulk([team for team, _, _ in required if team is not None])
    projects = Project.objects.in_bulk([project for _, project, _ in required if project is not None])
    for (team, project, action), (budget, spent) in required.items():
        close_budget_gate(
            action=action,
            numbers=_gate_numbers(budget, spent),
            until=period_end(budget.period, budget.month),
            now=now,
            team=None if team is None else teams[team],
            project=None if project is None else projects[project],
        )
    for budget, _ in exhausted:
        if budget.action == BudgetAction.STOP_RUNNING:
            for team, project in _gate_owners(budget, paid):
                stop_running_work(team=team, project=project, now=now)
    _open_unneeded_gates(set(required))


def _gate_numbers(budget: Budget, spent: Decimal) -> dict[str, Any]:
    """Return the values for the sentence of a gate that a budget closes."""
    return {
        "limit": str(budget.amount),
        "spent": str(round_amount(spent, smallest_unit(scope_of(budget).currency))),
        "month": budget.month.isoformat(),
        "measure": budget.measure,
        **({"currency": budget.currency} if budget.measure == BudgetMeasure.MONEY else {}),
        **({} if budget.period == BudgetPeriod.MONTH else {"period": budget.period}),
        **({"cost_centre": budget.cost_centre} if budget.cost_centre else {}),
    }


def _gate_action(budget: Budget) -> str:
    """Return the gate that a budget closes. A budget that stops running work also refuses new work."""
    if budget.action == BudgetAction.STOP_RUNNING:
        return BudgetGate.GateAction.REFUSE_NEW
    return budget.action


def _gate_owners(
    budget: Budget, projects: Mapping[str, Sequence[int]]
) -> list[tuple[int | None, int | None]]:
    """Return the owners of a budget's gates, as pairs of team id and project id.

    The budget of a cost centre closes a gate for each project for which the cost centre pays now, in full or
    in part. ``projects`` has the ids of these projects by the code of the cost centre.
    """
    if not budget.cost_centre:
        return [(budget.team_id, budget.project_id)]
    return [(None, project) for project in projects.get(budget.cost_centre, ())]


def _projects_by_cost_centre(now: datetime) -> dict[str, list[int]]:
    """Return the ids of the projects for which each cost centre pays now, by code."""
    found: dict[str, list[int]] = defaultdict(list)
    for payer, split in load_all_splits().current(now).items():
        for share in split:
            if payer.project is not None:
                found[share.code].append(payer.project)
    return {code: sorted(projects) for code, projects in found.items()}


def _record_alerts(budget: Budget, spent: Decimal, forecast: BudgetForecast | None, now: datetime) -> int:
    """Record an alert for each threshold that was passed for the first time. Return the number of new alerts.

    If the forecast is above the budget, an alert about a forecast of 100 percent is recorded too.
    """
    passed = [
        (step, False) for step in ALERT_PERCENTS if spent * 100 >= budget.amount * step and budget.amount > 0
    ]
    if forecast is not None and budget.amount > 0 and spent < budget.amount < forecast.expected:
        passed.append((USED_UP_PERCENT, True))
    new = [
        BudgetAlert.objects.get_or_create(
            budget=budget,
            percent=step,
            forecast=is_forecast,
            defaults={"spent": round_amount(spent, MICRO), "at": now},
        )[1]
        for step, is_forecast in passed
    ]
    reached = max((step for step, is_forecast in passed if not is_forecast), default=0)
    Budget.objects.filter(pk=budget.pk).exclude(notified_percent=reached).update(notified_percent=reached)
    return sum(new)


@transaction.atomic
def _open_unneeded_gates(required_gates: set[GateKey]) -> None:
    """Open every closed gate that is not in ``required_gates``: (team id, project id, action).

    No exhausted budget requires such a gate now.
    """
    gates = BudgetGate.objects.values_list("team", "project", "action")
    for team, project, action in set(gates) - required_gates:
        open_budget_gate(
            action=action,
            team=Team.with_removed.filter(pk=team).first(),
            project=Project.objects.filter(pk=project).first(),
        )
