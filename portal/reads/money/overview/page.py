"""Read all figures above the table of the chargeback page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

from django.db.models import QuerySet

from portal import policy
from portal.models import User
from portal.reads.money.charge_scope import ChargeScope
from portal.reads.money.overview.compared_days import ComparedDays, compared_days
from portal.reads.money.overview.curve import SpendCurve, spend_curve
from portal.reads.money.overview.equation import MonthEquation, month_equation
from portal.reads.money.overview.forecast import BudgetSum, budget_sum, month_forecast
from telemetry.core.billing_calendar import previous_month
from telemetry.core.spending.spend_bridge import SpendBridge
from telemetry.models import ChargeCell
from telemetry.money.billing_months import month_bounds, month_of
from telemetry.money.closing.statement_months import StatementMonths
from telemetry.reads.budget_status import ForecastRange
from telemetry.reads.chargeback import ChargeTable, group_names
from telemetry.reads.overview.day_totals import day_totals
from telemetry.reads.overview.month_amounts import SHOWN_MONTHS, MonthAmount, month_amounts
from telemetry.reads.overview.spend_change import bridge_of_months

HISTORY_MONTHS = 14  # the present month, and those of the last 400 days
NoBridge = Literal["", "first_day", "first_month", "currency"]


@dataclass(frozen=True)
class MonthChange:
    """The change since the same days of the month before.

    ``former`` is the whole month before; None if it has no charges that the viewer sees. Without a
    comparison, ``bridge`` is None and ``missing`` is the reason: no day of the month is over (``first_day``),
    there is no month before (``first_month``), or the currencies differ (``currency``). ``days`` are the
    compared days. ``project_names`` has the names of the new projects by id.
    """

    former: MonthAmount | None
    days: ComparedDays | None
    bridge: SpendBridge | None
    missing: NoBridge
    project_names: dict[Any, str]

    @property
    def amount(self) -> Decimal | None:
        """Return the charges of the compared days minus those of the month before."""
        return None if self.bridge is None else self.bridge.now - self.bridge.before

    @property
    def share(self) -> float | None:
        """Return the change as a part of the amount before; None if this was not above 0."""
        if self.bridge is None or self.bridge.before <= 0:
            return None
        return float((self.bridge.now - self.bridge.before) / self.bridge.before)


@dataclass(frozen=True)
class ChargebackOverview:
    """The figures of a month that a viewer sees, in cents of ``currency``.

    ``charged`` is the amount on the statement: the use of the month with the corrections of earlier months.
    ``elapsed_days`` is the part of the month that is over, in days of 24 hours. ``forecast`` is None for a
    month that is over, and until three whole days are known. ``equation`` is None for viewers who do not see
    all charges.
    """

    month: date
    is_over: bool
    closed: bool
    currency: str
    charged: Decimal
    gpu_hours: float
    coverage: float | None
    elapsed_days: float
    months: tuple[MonthAmount, ...]
    change: MonthChange
    forecast: ForecastRange | None
    budget: BudgetSum | None
    curve: SpendCurve
    equation: MonthEquation | None


def chargeback_overview(
    viewer: User,
    month: date,
    now: datetime,
    *,
    scope: ChargeScope,
    table: ChargeTable,
    budgets: Sequence[dict[str, Any]],
    conservation: dict[str, Any] | None,
    statements: StatementMonths,
) -> ChargebackOverview:
    """Return the figures of a month for a viewer who may see charges.

    ``table`` is a table of all charges of the month that the viewer sees, ``budgets`` are the rows of
    ``budget_rows``, and ``conservation`` is the result of ``conservation_equation``; None if the viewer may
    not see it. ``statements`` are those of all months. The number of queries is at most six, and at most
    eight more for a forecast of a part of the charges.
    """
    cells, currency, charged = policy.visible_cells(viewer), table.currency, table.charged
    first = min(previous_month(month), _back(month_of(now), SHOWN_MONTHS - 1))
    rows = day_totals(_months_of_days(first, month, now, scope), cells)
    months = month_amounts(first, month_of(now), rows, statements, currency)
    budget = budget_sum(budgets, currency, charged)
    limit = budget.amount if budget and budget.covers_all else None
    start, end = month_bounds(month)
    return ChargebackOverview(
        month=month,
        is_over=end <= now,
        closed=any(each.month == month and each.closed for each in months),
        currency=currency,
        charged=charged,
        gpu_hours=table.total.gpu_hours,
        coverage=table.total.coverage,
        elapsed_days=(min(now, end) - start).total_seconds() / 86_400,
        months=tuple(each for each in months if _is_shown(each.month, month, now)),
        change=_change(month, now, months, currency, cells, statements),
        forecast=month_forecast(viewer, month, now, scope, rows, budgets, charged, currency),
        budget=budget,
        curve=spend_curve(month, now, rows, currency, limit),
        equation=None
        if conservation is None
        else month_equation(conservation, idle_shared=_is_idle_shared(table)),
    )


def _is_idle_shared(table: ChargeTable) -> bool:
    """Return True if a row has a share of idle time. The shares of several rows may cancel in the total."""
    return any(group.idle_share for group in (*table.groups, *table.corrections))


def _is_shown(each: date, month: date, now: datetime) -> bool:
    """Return True for the last twelve months; for ``month`` and the next eleven if ``month`` is older."""
    first = min(month, _back(month_of(now), SHOWN_MONTHS - 1))
    return first <= each < _back(first, -SHOWN_MONTHS)


def _months_of_days(first: date, month: date, now: datetime, scope: ChargeScope) -> list[date]:
    """Return the months whose daily charges are read. The page shows all months from ``first`` on. If the
    viewer sees only a part of the charges, the forecast is computed here and needs more months.
    """
    if month == month_of(now) and scope.kind != "all":
        first = min(first, _back(month, HISTORY_MONTHS - 1))
    count = (month_of(now).year - first.year) * 12 + month_of(now).month - first.month + 1
    return [_back(month_of(now), number) for number in range(count)]


def _back(month: date, count: int) -> date:
    number = month.year * 12 + month.month - 1 - count
    return date(number // 12, number % 12 + 1, 1)


def _change(
    month: date,
    now: datetime,
    months: Sequence[MonthAmount],
    currency: str,
    cells: QuerySet[ChargeCell] | None,
    statements: StatementMonths,
) -> MonthChange:
    former = next((each for each in months if each.month == previous_month(month)), None)
    days = compared_days(month, now)
    missing: NoBridge = ""
    if former is None:
        missing = "first_month"
    elif former.currency != currency:
        missing = "currency"
    elif days is None:
        missing = "first_day"
    if missing or days is None:
        return MonthChange(former, days, None, missing, {})
    bridge = bridge_of_months(days.before, days.now, currency, cells)
    new = [project for step in bridge.steps for project in step.projects if project is not None]
    names = group_names("project", new, month, statements) if new else {}
    return MonthChange(former, days, bridge, "", names)
