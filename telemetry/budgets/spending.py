"""Read the spending of teams, projects and cost centres in a period or on each day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db.models import Q, Sum
from django.db.models.functions import Coalesce

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.amounts import ZERO
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.core.currencies import DEFAULT_CURRENCY
from telemetry.models import Budget, BudgetMeasure, Charge, StatementLine

DailySpend = dict[date, float]


@dataclass(frozen=True)
class SpendScope:
    """The owner of spending: a team or a project by id, or a cost centre by code. Exactly one is given.

    Spending in money counts only if it is in ``currency``. GPU-hours have no currency, so ``currency`` keeps
    its default for them.
    """

    team: int | None = None
    project: int | None = None
    cost_centre: str = ""
    currency: str = DEFAULT_CURRENCY


def scope_of(budget: Budget) -> SpendScope:
    """Return the owner of the spending that a budget limits."""
    currency = budget.currency if budget.measure == BudgetMeasure.MONEY else DEFAULT_CURRENCY
    return SpendScope(budget.team_id, budget.project_id, budget.cost_centre, currency)


@dataclass(frozen=True)
class PeriodSpendQuery:
    """Spending to sum: of ``scope``, on the statements of the months in ``[start, end)``.

    ``measure`` is a value of BudgetMeasure.
    """

    scope: SpendScope
    measure: str
    start: date
    end: date


def period_spend(scope: SpendScope, measure: str, start: date, end: date) -> Decimal:
    """Return the charged money or GPU-hours on the statements of the months in ``[start, end)``.

    ``period_spends`` says which amounts count.
    """
    return period_spends([PeriodSpendQuery(scope, measure, start, end)])[0]


def period_spends(queries: Sequence[PeriodSpendQuery]) -> list[Decimal]:
    """Return the charged money or GPU-hours of each query, in their order. Runs one query.

    Money is the amount on the statements: with corrections of earlier months and shares of idle time.
    GPU-hours do not include corrections of months before the start.
    """
    if not queries:
        return []
    first, end = min(query.start for query in queries), max(query.end for query in queries)
    lines = StatementLine.objects.filter(statement__month__gte=first, statement__month__lt=end)
    rows = (
        lines.filter(_scope_filter([query.scope for query in queries]))
        .order_by()
        .values_list(
            "team_id", "project_id", "cost_centre", "currency", "statement__month", "corrected_month"
        )
        .annotate(
            money=Coalesce(Sum("charged_cents"), ZERO),
            seconds=Coalesce(Sum("slot_seconds", filter=Q(bucket__in=CHARGED_BUCKETS)), 0),
        )
    )
    by_owner: dict[tuple[str, Any], list[tuple[Any, ...]]] = defaultdict(list)
    for team, project, cost_centre, *row in rows:
        for owner in (("team", team), ("project", project), ("cost_centre", cost_centre)):
            by_owner[owner].append(tuple(row))
    return [_sum_of_query(query, by_owner[_owner(query.scope)]) for query in queries]


def _owner(scope: SpendScope) -> tuple[str, Any]:
    if scope.team is not None:
        return "team", scope.team
    return ("project", scope.project) if scope.project is not None else ("cost_centre", scope.cost_centre)


def _sum_of_query(query: PeriodSpendQuery, rows: Iterable[tuple[Any, ...]]) -> Decimal:
    """Return the sum of some rows: (currency, statement month, corrected month, money, slot-seconds)."""
    inside = [row for row in rows if query.start <= row[1] < query.end]
    if query.measure == BudgetMeasure.MONEY:
        return sum((money for currency, _, _, money, _ in inside if currency == query.scope.currency), ZERO)
    own = (seconds for _, _, corrected, _, seconds in inside if not corrected or corrected >= query.start)
    return Decimal(sum(own)) / SLOT_SECONDS_PER_GPU_HOUR


def daily_spend(
    scopes: Collection[SpendScope], measure: str, since: datetime
) -> dict[SpendScope, DailySpend]:
    """Return the charged money or GPU-hours of each billing day since a time, for each scope.

    A correction counts on the day that it corrects. Runs one query.
    """
    column = "slot_seconds" if measure == BudgetMeasure.GPU_HOURS else "charged"
    rows = (
        Charge.objects.filter(_scope_filter(scopes), start__gte=since, bucket__in=CHARGED_BUCKETS)
        .values_list("team_id", "project_id", "cost_centre", "price__currency", "day")
        .annotate(total=Sum(column))
        .order_by("day")
    )
    unit = SLOT_SECONDS_PER_GPU_HOUR if measure == BudgetMeasure.GPU_HOURS else 1
    found: dict[SpendScope, DailySpend] = {scope: defaultdict(float) for scope in scopes}
    for team, project, cost_centre, price_currency, day, total in rows:
        currency = price_currency if measure == BudgetMeasure.MONEY else DEFAULT_CURRENCY
        for scope in owners_of(team, project, cost_centre, currency):
            if scope in found:
                found[scope][day] += float(total) / unit
    return found


def owners_of(team: int | None, project: int | None, cost_centre: str, currency: str) -> list[SpendScope]:
    """Return the scopes to which spending of a team, a project and a cost centre belongs."""
    return [
        SpendScope(team=team, currency=currency),
        SpendScope(project=project, currency=currency),
        SpendScope(cost_centre=cost_centre, currency=currency),
    ]


def _scope_filter(scopes: Collection[SpendScope]) -> Q:
    return (
        Q(team__in={scope.team for scope in scopes if scope.team is not None})
        | Q(project__in={scope.project for scope in scopes if scope.project is not None})
        | Q(cost_centre__in={scope.cost_centre for scope in scopes if scope.cost_centre})
    )
