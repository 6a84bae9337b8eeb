"""Set the budgets of teams, projects and cost centres."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import User
from portal.services import audit
from portal.wording.problems import administration_problems
from scheduler.models import Project, Team
from telemetry.budgets.budget_periods import period_of
from telemetry.core.amounts import round_amount
from telemetry.core.currencies import decimals_of
from telemetry.models import Budget, BudgetMeasure, CostCentre
from telemetry.money.billing_months import billing_calendar
from telemetry.money.pricing.billing_currencies import load_billing_currencies

BUDGET_AUDIT_FIELDS = ("cost_centre", "period", "month", "measure", "amount", "action")
MAX_BUDGET = Decimal(1_000_000_000)
GPU_HOURS_DECIMALS = 2
BUDGET_ACTIONS = ("notify", "refuse_new", "stop_borrowing", "stop_running")
BUDGET_PERIODS = ("month", "quarter", "year")
BUDGET_MEASURES = ("money", "gpu_hours")


def set_budget(
    *,
    actor: User,
    month: date,
    amount: Decimal | str,
    now: datetime,
    team: Team | None = None,
    project: Project | None = None,
    cost_centre: str = "",
    period: str = "month",
    measure: str = "money",
    action: str = "notify",
    via: str = "web",
) -> Budget:
    """Limit the charges of a team, a project or a cost centre, and set the action when the limit is reached.

    ``month`` is the first day of the period: a calendar month, quarter or year. ``measure`` selects the unit
    of ``amount``: money or GPU-hours. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "budget.change")
    checks = InputChecks()
    if sum((team is not None, project is not None, cost_centre != "")) != 1:
        checks.note("team", None, administration_problems.ONE_BUDGET_OWNER)
    owning_team = project.team if project else team
    if owning_team is not None and not Team.objects.filter(pk=owning_team.pk).exists():
        problem = administration_problems.BUDGET_OF_REMOVED_TEAM.format(team=owning_team.name)
        checks.note("project" if project else "team", owning_team.name, problem)
    if cost_centre:
        known = list(CostCentre.objects.order_by("code").values_list("code", flat=True))
        cost_centre = checks.choice("cost_centre", cost_centre, known)
    month = checks.month("month", month)
    period = checks.choice("period", period, BUDGET_PERIODS)
    measure = checks.choice("measure", measure, BUDGET_MEASURES)
    currency = load_billing_currencies().of(month)
    clean = checked_budget_amount(checks, amount, measure, currency)
    action = checks.choice("action", action, BUDGET_ACTIONS)
    if not checks.problems.keys() & {"month", "period"}:
        check_period(checks, period, month, now)
    checks.done()
    with transaction.atomic():
        key: dict[str, Any] = {
            "team": team,
            "project": project,
            "cost_centre": cost_centre,
            "period": period,
            "month": month,
            "measure": measure,
        }
        old = Budget.objects.filter(**key).first()
        before = audit.audited_fields(old, "amount", "action") if old else None
        new = {"amount": clean, "action": action, "currency": currency}
        budget, _ = Budget.objects.update_or_create(**key, defaults=new)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_budget",
            target=budget,
            before=before,
            team_id=team.pk if team else project.team_id if project else None,
            after=audit.audited_fields(budget, *BUDGET_AUDIT_FIELDS),
        )
    return budget


def checked_budget_amount(checks: InputChecks, amount: Any, measure: str, currency: str) -> Decimal:
    """Return the amount of a budget. Money may have the decimals of the currency, GPU-hours two decimals."""
    decimals = decimals_of(currency) if measure == BudgetMeasure.MONEY else GPU_HOURS_DECIMALS
    clean = checks.amount("amount", amount, high=MAX_BUDGET, decimals=decimals)
    return round_amount(clean, Decimal(1).scaleb(-decimals))


def check_period(checks: InputChecks, period: str, first: date, now: datetime) -> None:
    """Add a problem to ``checks`` if no such period begins at ``first``, or if the period is over."""
    if first != period_of(period, first):
        checks.note(
            "month",
            first.isoformat(),
            administration_problems.NOT_A_PERIOD_START.format(month=first, period=period),
        )
    elif first < period_of(period, billing_calendar().day_of(now)):
        checks.note("month", first.isoformat(), administration_problems.MONTH_IS_PAST.format(month=first))
