"""Submit requests to change a team's budget."""

from __future__ import annotations

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
from scheduler.core.rejection import OperationRejected
from scheduler.models import Team
from telemetry.models import Budget, BudgetMeasure
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
    why: str = "",
    via: str = "web",
) -> Submission:
    """Request a new limit of a team's budget in the period that begins at ``month``. Finance decides.

    The request does not change the action of an existing budget, such as "notify". Raises Invalid,
    NotAllowed. Raises OperationRejected if an equal request is waiting.
    """
    policy.require(actor, "budget.request", team)
    checks = InputChecks()
    month = checks.month("month", month)
    period = checks.choice("period", period, BUDGET_PERIODS)
    measure = checks.choice("measure", measure, BUDGET_MEASURES)
    currency = load_billing_currencies().of(month)
    clean = checked_budget_amount(checks, amount, measure, currency)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    if not checks.problems.keys() & {"month", "period"}:
        check_period(checks, period, month, now)
    checks.done()
    payload = {"period": period, "month": month.isoformat(), "measure": measure, "amount": str(clean)}
    if measure == BudgetMeasure.MONEY:
        payload["currency"] = currency
    with transaction.atomic():
        submission = create_unique_submission(
            OperationRejected("budget_request_waits", {"team": team.name}, field="amount"),
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


def budget_before(team: Team, payload: dict[str, Any]) -> Budget | None:
    """Return the present budget, which the request would change; None without a budget for this period."""
    return Budget.objects.filter(
        team=team,
        period=payload["period"],
        month=date.fromisoformat(payload["month"]),
        measure=payload["measure"],
    ).first()


def _amount_before(team: Team, payload: dict[str, Any]) -> dict[str, Any] | None:
    budget = budget_before(team, payload)
    return None if budget is None else {"amount": str(budget.amount)}
