"""Forecast the spending of budgets at the end of their periods, and store the forecasts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal

from telemetry.budgets.budget_periods import next_period, period_end, period_of, previous_period
from telemetry.budgets.commitments import committed_spend
from telemetry.budgets.spending import DailySpend, daily_spend, period_spend, scope_of
from telemetry.core.amounts import round_amount
from telemetry.core.currencies import smallest_unit
from telemetry.core.spending.spend_forecast import SpendForecast, SpendPeriod, forecast_spend
from telemetry.models import Budget, BudgetForecast
from telemetry.money.billing_months import billing_calendar

FORECAST_INTERVAL = timedelta(hours=1)
HISTORY_DAYS = 400  # 13 months
MIN_KNOWN_DAYS = 3  # a forecast from fewer whole days is not reliable


def refresh_budget_forecasts(budgets: Iterable[Budget], now: datetime) -> dict[int, BudgetForecast]:
    """Return the forecast of each budget by budget id.

    Forecasts that are missing or older than an hour are made again and stored. The periods of ``budgets``
    contain ``now``. A budget has no forecast if its owner has spent nothing yet, or if the owner's first
    spending was less than MIN_KNOWN_DAYS ago.
    """
    budgets = list(budgets)
    stored = BudgetForecast.objects.in_bulk([budget.pk for budget in budgets])
    due: dict[tuple[str, datetime], list[Budget]] = defaultdict(list)
    for budget in budgets:
        if budget.pk not in stored or stored[budget.pk].as_of <= now - FORECAST_INTERVAL:
            due[budget.measure, period_end(budget.period, budget.month)].append(budget)
    new = [row for (measure, end), rows in due.items() for row in _forecasts(rows, measure, end, now)]
    BudgetForecast.objects.bulk_create(
        new,
        update_conflicts=True,
        unique_fields=["budget"],
        update_fields=["expected", "low", "high", "past_periods", "past_inside", "past_error", "as_of"],
    )
    return stored | {row.budget_id: row for row in new}


def _forecasts(budgets: list[Budget], measure: str, end: datetime, now: datetime) -> Iterable[BudgetForecast]:
    """Yield the forecasts of budgets with the same measure and the same end of the period."""
    scopes = {scope_of(budget) for budget in budgets}
    spent = daily_spend(scopes, measure, now - timedelta(days=HISTORY_DAYS))
    committed = committed_spend(scopes, measure, now, end)
    today = billing_calendar().day_of(now)
    for budget in budgets:
        scope = scope_of(budget)
        if min(spent[scope], default=today) > today - timedelta(days=MIN_KNOWN_DAYS):
            continue
        forecast = forecast_period(spent[scope], committed[scope], budget.period, now)
        start, following = budget.month, next_period(budget.period, budget.month)
        # A correction of an earlier period counts as spending of this period, but belongs to none of its
        # days.
        known = sum(amount for day, amount in spent[scope].items() if start <= day < following)
        unit = smallest_unit(scope.currency)
        other = period_spend(scope, measure, start, following) - Decimal(str(known))
        yield BudgetForecast(
            budget=budget,
            expected=round_amount(Decimal(str(forecast.expected)) + other, unit),
            low=round_amount(Decimal(str(forecast.low)) + other, unit),
            high=round_amount(Decimal(str(forecast.high)) + other, unit),
            past_periods=forecast.past_periods,
            past_inside=forecast.past_inside,
            past_error=forecast.past_error,
            as_of=now,
        )


def forecast_period(spent: DailySpend, committed: DailySpend, period: str, now: datetime) -> SpendForecast:
    """Return the forecast of the period that contains ``now``, with the record of all known past periods."""
    today = billing_calendar().day_of(now)
    start, end = billing_calendar().day_bounds(today)
    share = (now - start) / (end - start)
    first = period_of(period, today)
    current = SpendPeriod(first, next_period(period, first), today, share)
    return forecast_spend(
        spent,
        current,
        past_periods=_past_periods(period, current, min(spent, default=today)),
        committed_by_day=committed,
    )


def _past_periods(period: str, current: SpendPeriod, since: date) -> list[SpendPeriod]:
    """Return the earlier periods whose spending is completely known, for a comparison with ``current``.

    Each period is cut off after as many days as ``current`` has had. Shorter periods are left out.
    """
    elapsed = current.known_until - current.start
    found = []
    first = previous_period(period, current.start)
    while first >= since:
        following = next_period(period, first)
        if first + elapsed < following:
            found.append(SpendPeriod(first, following, first + elapsed, current.share_of_next_day))
        first = previous_period(period, first)
    return found
