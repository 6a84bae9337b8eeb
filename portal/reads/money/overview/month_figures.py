"""Read the figures of a month of charges, once for the chargeback page and for the home page of finance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from portal import policy
from portal.models import User
from portal.reads.money import chargeback as reads
from portal.reads.money.charge_scope import charge_scope
from portal.reads.money.closing.close_panel import ClosePanel, ReadMonth, close_and_unusual
from portal.reads.money.closing.waiting_months import waiting_months
from portal.reads.money.overview.page import ChargebackOverview, chargeback_overview
from portal.reads.money.unusual_spend import UnusualOverview
from telemetry.models import BudgetMeasure
from telemetry.money.billing_months import billing_calendar, month_of
from telemetry.money.closing.statement_months import StatementMonths, load_statement_months
from telemetry.money.reconciliation import month_line_sums
from telemetry.reads.chargeback import charges_by

# A budget whose spending or forecast reaches this part of its amount is near its limit.
NEAR_LIMIT_SHARE = 0.9


def read_month(
    viewer: User, month: date, where: Mapping[str, Any], months: StatementMonths, *, two_people: bool
) -> ReadMonth:
    """Read the parts of a month that several parts of a page show. ``where`` are the filters of the page."""
    has_panels = policy.may(viewer, "charges.see_all") and not where
    return ReadMonth(
        statement=reads.statement_of(month),
        lines=month_line_sums(month) if has_panels else None,
        months=months,
        two_people=two_people,
    )


@dataclass(frozen=True)
class FinanceFigures:
    """The figures of the home page of finance.

    ``overview``, ``budgets`` and ``today`` are of the present month. ``close`` and ``unusual`` are of
    ``close_month``: the oldest month that waits to be closed, otherwise the present month. ``budgets`` come
    by their expected share of the amount, the highest first.
    """

    overview: ChargebackOverview
    today: Decimal
    budgets: list[dict[str, Any]]
    close_month: date
    close: ClosePanel | None
    unusual: UnusualOverview | None


def finance_figures(viewer: User, now: datetime, *, two_people: bool) -> FinanceFigures | None:
    """Return the figures of the home page of finance; None for viewers who do not see all charges.

    Calls the reads of the chargeback page. The number of queries is fixed.
    """
    if not policy.sees_all_charges(viewer):
        return None
    month, months = month_of(now), load_statement_months()
    budgets = reads.budget_rows(viewer, month, now)
    read = read_month(viewer, month, {}, months, two_people=two_people)
    equation = reads.conservation_equation(month, months, read.statement, read.lines)
    overview = chargeback_overview(
        viewer,
        month,
        now,
        scope=charge_scope(viewer),
        table=charges_by("cost_centre", month, policy.visible_cells(viewer), months=months),
        budgets=budgets,
        conservation=equation,
        statements=months,
    )
    waiting = waiting_months(now)
    if waiting:
        read = read_month(viewer, waiting[0], {}, months, two_people=two_people)
        equation = reads.conservation_equation(waiting[0], months, read.statement, read.lines)
    close_month = waiting[0] if waiting else month
    panels = close_and_unusual(
        viewer, close_month, now, read, closed=False, equation=equation, filtered=False
    )
    return FinanceFigures(
        overview=overview,
        today=_charged_on(overview, billing_calendar().day_of(now)),
        budgets=by_expected_share(budgets),
        close_month=close_month,
        close=panels["close"],
        unusual=panels["unusual"],
    )


def by_expected_share(budgets: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of ``budget_rows``, the highest expected share of the amount first.

    Each row gets ``expected_share``, and ``near_limit``: the share is at least NEAR_LIMIT_SHARE.
    """
    rows = []
    for row in budgets:
        share = _expected_share(row)
        rows.append({**row, "expected_share": share, "near_limit": share >= NEAR_LIMIT_SHARE})
    return sorted(rows, key=lambda row: (-row["expected_share"], row["name"], row["view"].measure))


def _expected_share(row: Mapping[str, Any]) -> float:
    """Return the expected spending as a part of the amount. Any spending breaks a budget of zero."""
    view = row["view"]
    expected = max(view.spent, view.forecast or view.spent)
    if not view.amount:
        return float(expected > 0)
    return float(expected / view.amount)


def over_budget_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the owners of the budgets in money that are exceeded, or will be by their forecast."""
    return [row["name"] for row in rows if row["is_over"] and row["view"].measure == BudgetMeasure.MONEY]


def _charged_on(overview: ChargebackOverview, day: date) -> Decimal:
    return next(
        (each.charged for each in overview.curve.days if each.day == day and each.charged), Decimal(0)
    )
