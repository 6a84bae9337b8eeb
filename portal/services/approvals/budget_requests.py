"""Submit requests to change the budget of a team, of its projects, and of cost centres that pay for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import Submission, User
from portal.services import audit
from portal.services.approvals.submissions import create_unique_submission
from portal.services.money.budgets import (
    BUDGET_MEASURES,
    BUDGET_PERIODS,
    check_period,
    checked_budget_amount,
)
from portal.wording.problems import administration_problems
from scheduler.core.rejection import OperationRejected
from scheduler.models import Project, Team
from telemetry.cost_centres.splits import Payer, load_all_splits
from telemetry.models import Budget, BudgetMeasure, CostCentre
from telemetry.money.pricing.billing_currencies import load_billing_currencies


def request_budget(
    *,
    actor: User,
    team: Team,
    month: date,
    amount: Decimal | str,
    now: datetime,
    period: str = "month",
    measure: str = "money",
    project: Project | None = None,
    cost_centre: str = "",
    why: str = "",
    via: str = "web",
) -> Submission:
    """Request a new limit of a budget in the period that begins at ``month``. Finance decides.

    The budget is that of the team. With ``project``, it is that of a project of the team; with
    ``cost_centre``, that of a cost centre that pays for one of its projects at present. The request does not
    change the action of an existing budget, such as "notify". Raises Invalid, NotAllowed. Raises
    OperationRejected if an equal request is waiting.
    """
    policy.require(actor, "budget.request", team)
    checks = InputChecks()
    month = checks.month("month", month)
    period = checks.choice("period", period, BUDGET_PERIODS)
    measure = checks.choice("measure", measure, BUDGET_MEASURES)
    currency = load_billing_currencies().of(month)
    clean = checked_budget_amount(checks, amount, measure, currency)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    owner = _checked_owner(checks, team, project, cost_centre, now)
    if not checks.problems.keys() & {"month", "period"}:
        check_period(checks, period, month, now)
    checks.done()
    payload = {"period": period, "month": month.isoformat(), "measure": measure, "amount": str(clean)}
    payload |= owner
    if measure == BudgetMeasure.MONEY:
        payload["currency"] = currency
    with transaction.atomic():
        submission = create_unique_submission(
            OperationRejected(
                "budget_request_waits", {"owner": budget_owner_name(team, payload)}, field="amount"
            ),
            kind=Submission.Kind.BUDGET,
            team=team,
            author=actor,
            why=why,
            payload=payload,
            created_at=now,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="request_budget",
            target=submission,
            after=payload,
            why=why,
            before=_amount_before(team, payload),
        )
    return submission


def requestable_cost_centres(team: Team, now: datetime) -> list[str]:
    """Return the codes of the cost centres that pay for the projects of a team at present, in order."""
    splits, projects = load_all_splits(), Project.objects.filter(team=team).values_list("pk", flat=True)
    codes = {share.code for pk in projects for share in splits.at(Payer(project=pk), now)}
    return sorted(CostCentre.objects.filter(code__in=codes).values_list("code", flat=True))


def _checked_owner(
    checks: InputChecks, team: Team, project: Project | None, cost_centre: str, now: datetime
) -> dict[str, str]:
    """Return the keys of the payload that name the owner of the budget; {} for the team itself."""
    if project is not None and cost_centre:
        checks.note("cost_centre", cost_centre, administration_problems.ONE_BUDGET_OWNER)
    if project is not None:
        slugs = list(Project.objects.filter(team=team).order_by("slug").values_list("slug", flat=True))
        allowed = [f"{team.slug}/{slug}" for slug in slugs]
        return {"project": checks.choice("project", f"{project.team.slug}/{project.slug}", allowed)}
    if cost_centre:
        allowed = requestable_cost_centres(team, now)
        return {"cost_centre": checks.choice("cost_centre", cost_centre, allowed)}
    return {}


def budget_owner(team: Team, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the owner of the requested budget, as ``set_budget`` and the columns of Budget name it."""
    if payload.get("project"):
        return {"project": Project.objects.get(team=team, slug=payload["project"].partition("/")[2])}
    return {"cost_centre": payload["cost_centre"]} if payload.get("cost_centre") else {"team": team}


def budget_owner_name(team: Team, payload: Mapping[str, Any]) -> str:
    """Return the name of the owner of the requested budget."""
    [owner] = budget_owner(team, payload).values()
    return owner if isinstance(owner, str) else str(owner.name)


def budget_before(team: Team, payload: Mapping[str, Any]) -> Budget | None:
    """Return the present budget, which the request would change; None without a budget for this period."""
    return Budget.objects.filter(
        **budget_owner(team, payload),
        period=payload["period"],
        month=date.fromisoformat(payload["month"]),
        measure=payload["measure"],
    ).first()


def _amount_before(team: Team, payload: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the present amount for the audit, which the author may read; None for a cost centre."""
    budget = None if payload.get("cost_centre") else budget_before(team, payload)
    return None if budget is None else {"amount": str(budget.amount)}
