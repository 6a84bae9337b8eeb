"""Find budgets that have reached a threshold, for notices to finance and team leads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from portal.models import User
from portal.notices.pending import PendingNotice
from portal.notices.recipients import lead_ids
from telemetry.models import BudgetAlert, BudgetMeasure


def budgets_reached(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each new alert of a budget, to finance and to the leads of the team."""
    for alert in BudgetAlert.objects.filter(at__gt=since, at__lte=now).select_related(
        "budget__team", "budget__project"
    ):
        budget = alert.budget
        whose = budget.team or budget.project
        team_id = budget.team_id or (budget.project.team_id if budget.project else None)
        finance = User.objects.filter(finance=True, is_active=True).values_list("pk", flat=True)
        users = (*finance, *(lead_ids(team_id) if team_id is not None else ()))
        numbers = {"name": whose.name if whose else "", "percent": alert.percent, "forecast": alert.forecast}
        if budget.measure == BudgetMeasure.GPU_HOURS:
            numbers["measure"] = budget.measure
        yield PendingNotice("budget_reached", f"budget:{alert.pk}", users, numbers)
