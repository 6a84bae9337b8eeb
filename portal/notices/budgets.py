"""Find budgets that have reached a threshold, for notices to finance and team leads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from portal.notices.pending import PendingNotice
from portal.notices.recipients import finance_ids, lead_ids
from telemetry.models import BudgetAction, BudgetAlert, BudgetMeasure, BudgetPeriod


def budgets_reached(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each new alert of a budget, to finance and to the leads of the team."""
    for alert in BudgetAlert.objects.filter(at__gt=since, at__lte=now).select_related(
        "budget__team", "budget__project"
    ):
        budget = alert.budget
        team_id = budget.team_id or (budget.project.team_id if budget.project else None)
        users = (*finance_ids(), *(lead_ids(team_id) if team_id is not None else ()))
        owner = budget.team or budget.project
        numbers = {
            "name": owner.name if owner else budget.cost_centre,
            "percent": alert.percent,
            "forecast": alert.forecast,
        }
        if budget.period != BudgetPeriod.MONTH:
            numbers["period"] = budget.period
        if budget.action == BudgetAction.STOP_RUNNING and alert.percent == 100 and not alert.forecast:
            numbers["stops_running"] = True
        if budget.measure == BudgetMeasure.GPU_HOURS:
            numbers["measure"] = budget.measure
        yield PendingNotice("budget_reached", f"budget:{alert.pk}", users, numbers)
