"""Set monthly budgets."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import User
from portal.services import audit
from portal.wording.problems import administration_problems
from scheduler.models import Project, Team
from telemetry.models import Budget
from telemetry.money.billing_months import month_of

MAX_BUDGET = Decimal(1_000_000_000)
BUDGET_ACTIONS = ("notify", "refuse_new", "stop_borrowing")
BUDGET_MEASURES = ("money", "gpu_hours")


def set_budget(
    *,
    actor: User,
    month: date,
    amount: Decimal | str,
    now: datetime,
    team: Team | None = None,
    project: Project | None = None,
    measure: str = "money",
    action: str = "notify",
    via: str = "web",
) -> Budget:
    """Limit the charges of a team or a project in a month, and set the action when the limit is reached.

    ``measure`` selects the unit of ``amount``: money or GPU-hours. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "budget.change")
    checks = InputChecks()
    if (team is None) == (project is None):
        checks.note("team", None, administration_problems.TEAM_AND_PROJECT)
    month = checks.month("month", month)
    clean = checks.amount("amount", amount, high=MAX_BUDGET, decimals=2)
    measure = checks.choice("measure", measure, BUDGET_MEASURES)
    action = checks.choice("action", action, BUDGET_ACTIONS)
    if "month" not in checks.problems and month < month_of(now):
        checks.note("month", month.isoformat(), administration_problems.MONTH_IS_PAST.format(month=month))
    checks.done()
    with transaction.atomic():
        old = Budget.objects.filter(team=team, project=project, month=month, measure=measure).first()
        before = audit.audited_fields(old, "amount", "action") if old else None
        budget, _ = Budget.objects.update_or_create(
            team=team,
            project=project,
            month=month,
            measure=measure,
            defaults={"amount": clean, "action": action},
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_budget",
            target=budget,
            before=before,
            team_id=team.pk if team else project.team_id if project else None,
            after=audit.audited_fields(budget, "month", "measure", "amount", "action"),
        )
    return budget
