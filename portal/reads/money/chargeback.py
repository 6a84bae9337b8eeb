"""Read the data of the chargeback pages that ``telemetry.reads`` does not provide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet

from portal import policy
from portal.models import User
from portal.wording import money_texts
from portal.wording.chargeback import budget_texts
from portal.wording.pages.money import correction_texts, money_pages
from scheduler.models import Gpu, Pool
from telemetry.budgets.budget_periods import period_of
from telemetry.core.amounts import ZERO
from telemetry.core.currencies import decimals_of
from telemetry.models import (
    BillingCurrency,
    Budget,
    BudgetMeasure,
    BudgetPeriod,
    Charge,
    IdlePayer,
    Price,
    PriceFactor,
    Statement,
    StatementState,
)
from telemetry.money import shared_idle, statements
from telemetry.money.closing.statement_months import StatementMonths, load_statement_months
from telemetry.money.reconciliation import LineSums
from telemetry.money.refund_limits import load_refund_limits
from telemetry.reads.budget_status import BudgetStatus, budget_statuses
from telemetry.reads.chargeback import ChargeTable, charges_by, group_names
from telemetry.reads.corrections import CorrectionBlock, blocks_of_table
from telemetry.reads.prices import load_current_prices

MAX_CAUSES = 3  # most causes that a row shows; the charge lines of the correction name all causes


def statement_of(month: date) -> Statement | None:
    """Return the month's statement; None if it does not exist yet.

    The same query reads the people who proposed and closed it, its last rehearsal, and its last search for
    unusual spend. The attribute ``is_simulated`` is True if a part of the charges is simulated history.
    """
    related = ("closed_by", "proposed_by", "rehearsal__run_by", "unusual_spend_search")
    simulated = Charge.objects.filter(month=OuterRef("month"), simulated=True)
    found = Statement.objects.filter(month=month).annotate(is_simulated=Exists(simulated))
    return found.select_related(*related).first()


def is_simulated(month: date) -> bool:
    """Return True if a part of a month's charges is simulated history."""
    return Charge.objects.filter(month=month, simulated=True).exists()


def conservation_equation(
    month: date,
    months: StatementMonths | None = None,
    statement: Statement | None = None,
    lines: Sequence[LineSums] | None = None,
) -> dict[str, Any]:
    """Return the check that a month's charges and losses add up to the cost of the GPUs.

    The equation is: charged - margin + uncharged + idle + overhead = cost. ``pools`` has the amounts of the
    equation for each pool. ``total`` has their sums over all pools. All amounts are in the currency of the
    month. ``difference`` is the left side minus the right side of the totals. ``not_sold`` in the totals is
    idle plus uncharged. ``adjusted`` is the sum of adjustments. They are not in ``charged`` here, because
    they belong to no pool. A caller that has already read them can pass the statements of all months
    (``months``), the statement of the month (``statement``) and its ``month_line_sums`` (``lines``).
    """
    months = months or load_statement_months()
    own = months.currency_of(month)
    statement = statement or statement_of(month)
    if statement is not None and statement.state == StatementState.CLOSED:
        totals = dict(statement.totals)
    else:
        totals = statements.open_month_totals(month, own, lines)
    names = ("charged", "margin", "uncharged", "idle", "overhead", "cost")
    rows = [
        {"pool": row["pool"], **{name: Decimal(row[name]) for name in names}}
        for row in totals["pools"]
        if row.get("currency", own) == own
    ]
    total: dict[str, Any] = {name: sum((row[name] for row in rows), Decimal(0)) for name in names}
    left = total["charged"] - total["margin"] + total["uncharged"] + total["idle"] + total["overhead"]
    total["not_sold"] = total["idle"] + total["uncharged"]
    total["adjusted"] = Decimal(totals.get("adjusted", 0))
    return {"pools": rows, "total": total, "difference": left - total["cost"]}


def budget_rows(viewer: User, month: date, now: datetime) -> list[dict[str, Any]]:
    """Return the visible budgets whose period contains a month, with their status, sorted by owner.

    ``record`` is a sentence about past forecasts; it is empty if there are none.
    """
    current = Q()
    for period in BudgetPeriod.values:
        current |= Q(period=period, month=period_of(period, month))
    visible = policy.visible_budgets(viewer).filter(current)
    rows = list(visible.select_related("team", "project", "spend_forecast"))
    statuses = budget_statuses(
        rows, now, {budget.pk: getattr(budget, "spend_forecast", None) for budget in rows}
    )
    found = []
    for budget in rows:
        view = statuses[budget.pk]
        record = budget_texts.forecast_record(view.range, budget.period)
        found.append(
            {
                "budget": budget,
                "name": _payer(budget),
                "period": budget_texts.period_name(budget.period, budget.month),
                "view": view,
                "record": record,
                **_budget_bar(view),
            }
        )
    return sorted(found, key=lambda row: (row["name"], row["view"].measure != BudgetMeasure.MONEY))


def _payer(budget: Budget) -> str:
    holder = budget.team or budget.project
    return holder.name if holder else budget.cost_centre


def _budget_bar(view: BudgetStatus) -> dict[str, Any]:
    """Return the segments of a budget's bar.

    ``used`` is the amount spent, up to the budget. ``forecast`` is the further expected amount, up to the
    budget. ``over`` is the larger of the spent and the expected amount, minus the budget; at least 0.
    """
    spent, limit = float(view.spent), float(view.amount)
    expected = float(view.forecast) if view.forecast is not None else spent
    scale = max(limit, expected, spent) * 1.05 or 1.0
    return {
        "scale": scale,
        "used": min(spent, limit),
        "forecast": max(0.0, min(expected, limit) - min(spent, limit)),
        "over": max(0.0, max(expected, spent) - limit),
        "mark": limit,
        "is_over": max(expected, spent) > limit,
    }


def dimension_name(dimension: str, key: Any, month: date) -> str:
    """Return the name that a month's pages show for a key. Example: a team's name for its id."""
    if key is None or key == "":
        return money_pages.DEDICATED_UNUSED if dimension == "project" else "none"
    return group_names(dimension, [key], month).get(key) or str(key)


@dataclass(frozen=True)
class CorrectionRow:
    """The corrections of a closed month for one cost centre, with a sentence for each shown cause."""

    block: CorrectionBlock
    causes: list[str]
    more_causes: int


def correction_rows(
    viewer: User, month: date, where: Mapping[str, Any], table: ChargeTable | None = None
) -> list[CorrectionRow]:
    """Return the visible corrections of closed months, each with at most MAX_CAUSES causes.

    ``table`` is the table by cost centre with these filters, if the caller has it.
    """
    if table is None:
        table = charges_by("cost_centre", month, policy.visible_cells(viewer), with_names=False, **where)
    return [
        CorrectionRow(
            block=block,
            causes=[correction_texts.cause_sentence(*cause) for cause in block.causes[:MAX_CAUSES]],
            more_causes=max(0, len(block.causes) - MAX_CAUSES),
        )
        for block in blocks_of_table(table, month, policy.visible_charges(viewer), where)
    ]


def pools() -> QuerySet[Pool]:
    """Return every pool, sorted by name."""
    return Pool.objects.order_by("name")


def models() -> list[str]:
    """Return every GPU model that at least one host has, sorted."""
    return sorted(set(Gpu.objects.filter(retired_at=None).values_list("model", flat=True)))


def rate_card(now: datetime) -> list[dict[str, Any]]:
    """Return all prices by model and pool. For each model and pool, the newest price comes first.

    ``state`` is "in force", "over" or "to come". ``margin`` is the price minus the cost of a GPU-hour.
    """
    rows = list(Price.objects.select_related("pool").order_by("model", "pool__name", "-valid_from"))
    now_charged = load_current_prices(now)
    return [
        {
            "price": row,
            "state": "to come"
            if row.valid_from > now
            else "in force"
            if now_charged.line(row.pool_id, row.model) == row.pk
            else "over",
            "margin": row.price_per_gpu_hour - row.cost_per_gpu_hour,
        }
        for row in rows
    ]


def price_factor_rows(now: datetime) -> list[dict[str, Any]]:
    """Return all price factors with their states, by pool and work. The newest factor comes first."""
    rows = list(PriceFactor.objects.select_related("pool").order_by("-valid_from", "-pk"))
    started: set[tuple[int | None, int | None, str]] = set()
    found = []
    for row in rows:
        key = (row.pool_id, row.priority, row.workload_type)
        state = "to come" if row.valid_from > now else "over" if key in started else "in force"
        if state == "in force":
            started.add(key)
        found.append({"row": row, "work": money_texts.factor_subject(row), "state": state})
    return sorted(found, key=lambda each: (each["row"].pool.name if each["row"].pool else "", each["work"]))


def currency_rows(now: datetime) -> list[dict[str, Any]]:
    """Return the currencies of months, newest first, each with its state."""
    rows = list(BillingCurrency.objects.order_by("-first_month"))
    in_force = next((row for row in rows if row.valid_from <= now), None)
    return [
        {
            "row": row,
            "decimals": decimals_of(row.currency),
            "state": "to come" if row.valid_from > now else "in force" if row == in_force else "over",
        }
        for row in rows
    ]


def refund_limit_rows(viewer: User, now: datetime) -> list[dict[str, Any]]:
    """Return the visible pools with their present refund limit and the limits to come."""
    pools = list(policy.visible_pools(viewer).order_by("name"))
    card = load_refund_limits({pool.pk for pool in pools})
    return [
        {
            "pool": pool,
            "now": money_texts.refund_limit_text(card.minutes_at(pool.pk, now)),
            "later": [
                {"text": money_texts.refund_limit_text(limit.forgiven_minutes), "from": limit.valid_from}
                for limit in card.of(pool.pk)
                if limit.valid_from > now
            ],
        }
        for pool in pools
    ]


def idle_payer_effects(month: date) -> list[dict[str, Any]]:
    """Return the amounts that each team would pay for the idle time of an open month.

    Each row has the name of a team, and one amount for each value of IdlePayer. The row with the
    name "" is the operator's part.
    """
    shares = {payer: shared_idle.idle_cost_by_team(month, payer) for payer in IdlePayer.values}
    names = sorted(
        {name for by_team in shares.values() for name in by_team}, key=lambda name: (not name, name)
    )
    return [
        {"team": name, **{payer: by_team.get(name, ZERO) for payer, by_team in shares.items()}}
        for name in names
    ]
