"""Verbs on prices, budgets, cost centres and months."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db import IntegrityError, transaction

from portal import policy
from portal.errors import Conflict
from portal.hardware_request import gpu_models_of_pool
from portal.input_checks import InputChecks
from portal.models import Organisation, User
from portal.services import audit
from scheduler.models import Gpu, Pool, Project, Team
from telemetry import reads
from telemetry.models import Budget, CostCentre, Price, Statement
from telemetry.money import statements
from telemetry.money.billing_months import month_of

MAX_PRICE = Decimal(100_000)
MAX_BUDGET = Decimal(1_000_000_000)
BUDGET_ACTIONS = ("notify", "refuse_new", "stop_borrowing")
BUDGET_MEASURES = ("money", "gpu_hours")
IDLE_PAYERS = ("operator", "guarantee", "use")


def set_price(
    *,
    actor: User,
    model: str,
    cost: Decimal | str,
    price: Decimal | str,
    valid_from: datetime,
    now: datetime,
    pool: Pool | None = None,
    note: str = "",
    via: str = "web",
) -> Price:
    """A new row of the rate card: what a GPU-hour costs its owner, and what teams pay, from a date on. Never touches the past.

    Raises Invalid, NotAllowed, Conflict when that date has a price already or lies in a closed month.
    """
    policy.require(actor, "price.change")
    checks = InputChecks()
    known = gpu_models_of_pool(pool) if pool else sorted(set(Gpu.objects.values_list("model", flat=True)))
    model = checks.choice("model", model, known)
    amounts = {
        name: checks.amount(name, value, high=MAX_PRICE, decimals=6)
        for name, value in (("cost", cost), ("price", price))
    }
    valid_from = checks.aware_datetime("valid_from", valid_from)
    note = checks.text("note", note, least=0, most=300)
    if "valid_from" not in checks.problems and valid_from < now.replace(minute=0, second=0, microsecond=0):
        checks.note(
            "valid_from",
            valid_from.isoformat(),
            f"valid_from is {valid_from.isoformat()}; allowed: from this hour on. A price never changes the past.",
        )
    checks.done()
    try:
        with transaction.atomic():
            row = Price.objects.create(
                pool=pool,
                model=model,
                cost_per_gpu_hour=amounts["cost"],
                price_per_gpu_hour=amounts["price"],
                valid_from=valid_from,
                note=note,
                created_at=now,
            )
            told = audit.audited_fields(row, "model", "cost_per_gpu_hour", "price_per_gpu_hour", "valid_from")
            audit.record(actor=actor, via=via, now=now, verb="set_price", target=row, after=told, why=note)
    except IntegrityError:
        raise Conflict(
            f"valid_from is {valid_from.isoformat()}; {model} has a price from that moment already.",
            field="valid_from",
        ) from None
    return row


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
    """What a team or a project may be charged in a month, in money or GPU-hours, and what happens when it is used up.

    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "budget.change")
    checks = InputChecks()
    if (team is None) == (project is None):
        checks.note("team", None, "team and project: give exactly one of the two.")
    month = checks.month("month", month)
    clean = checks.amount("amount", amount, high=MAX_BUDGET, decimals=2)
    measure = checks.choice("measure", measure, BUDGET_MEASURES)
    action = checks.choice("action", action, BUDGET_ACTIONS)
    if "month" not in checks.problems and month < month_of(now):
        checks.note(
            "month", month.isoformat(), f"month is {month:%Y-%m}; allowed: this month or a later one."
        )
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


def set_cost_centre(
    *, actor: User, project: Project, code: str, valid_from: datetime, now: datetime, via: str = "web"
) -> CostCentre:
    """Which cost centre pays for a project from a date on. Raises Invalid, NotAllowed, Conflict when that date has one."""
    policy.require(actor, "cost_centre.change")
    checks = InputChecks()
    code = checks.text("code", code, most=40)
    valid_from = checks.aware_datetime("valid_from", valid_from)
    if "valid_from" not in checks.problems and valid_from < now.replace(minute=0, second=0, microsecond=0):
        checks.note(
            "valid_from",
            valid_from.isoformat(),
            f"valid_from is {valid_from.isoformat()}; allowed: from this hour on.",
        )
    checks.done()
    try:
        with transaction.atomic():
            row = CostCentre.objects.create(project=project, code=code, valid_from=valid_from, created_at=now)
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="set_cost_centre",
                target=row,
                team_id=project.team_id,
                after={"project": project.slug, **audit.audited_fields(row, "code", "valid_from")},
            )
    except IntegrityError:
        words = f"valid_from is {valid_from.isoformat()}; {project.name} has a cost centre from that moment already."
        raise Conflict(words, field="valid_from") from None
    return row


def close_month(*, actor: User, month: date, now: datetime, why: str = "", via: str = "web") -> Statement:
    """Freeze a month that is over: its checks run, its lines are written, nothing changes it afterwards.

    Raises Invalid, NotAllowed, Conflict when it is closed already or a check fails (the message names the check).
    """
    policy.require(actor, "statement.close")
    checks = InputChecks()
    month = _ended_month(checks, month, now)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        try:
            statement = statements.close_month(
                month=month, closed_by=actor, now=now, currency=organisation_currency()
            )
        except statements.MonthCloseError as problem:
            raise Conflict(str(problem), field="month") from None
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="close_month",
            target=statement,
            why=why,
            after=audit.audited_fields(statement, "month", "state", "digest", "totals"),
        )
    return statement


def set_idle_payer(*, actor: User, month: date, payer: str, now: datetime, via: str = "web") -> Statement:
    """Who pays for what nobody held in a month: operator, guarantee (shared by it) or use. Raises Invalid, Conflict, NotAllowed."""
    policy.require(actor, "statement.close")
    checks = InputChecks()
    month = checks.month("month", month)
    payer = checks.choice("payer", payer, IDLE_PAYERS)
    checks.done()
    with transaction.atomic():
        statement = statements.get_or_create_statement(month)
        before = audit.audited_fields(statement, "idle_payer")
        if not Statement.objects.filter(pk=statement.pk, state="open").update(idle_payer=payer):
            raise Conflict(f"{month:%B %Y} is closed; who pays its idle time stays as it is.", field="month")
        statement.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_idle_payer",
            target=statement,
            before=before,
            after=audit.audited_fields(statement, "idle_payer"),
        )
    return statement


def gpu_hour_price(*, pool: Pool, models: list[str], now: datetime) -> Decimal | None:
    """What a GPU-hour is charged now: the dearest of these models, since any may be given. None when one has no price."""
    card = reads.load_current_prices(now)
    prices = [card.of(pool.pk, model) for model in models]
    return None if None in prices else max((price for price in prices if price is not None), default=None)


def organisation_currency() -> str:
    """The organisation's currency, three letters."""
    return Organisation.objects.values_list("currency", flat=True).first() or Organisation().currency


def _ended_month(checks: InputChecks, month: Any, now: datetime) -> date:
    clean = checks.month("month", month)
    if "month" not in checks.problems and clean >= month_of(now):
        checks.note(
            "month",
            clean.isoformat(),
            f"month is {clean:%Y-%m}; allowed: a month that is over, up to the one before {month_of(now):%Y-%m}.",
        )
    return clean
