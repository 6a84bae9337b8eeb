"""Forecast the charges of the whole organisation at the end of the present month, and store the forecast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal

from django.db.models import Sum

from scheduler.models import Team
from telemetry.budgets.budget_forecasts import (
    FORECAST_INTERVAL,
    HISTORY_DAYS,
    MIN_KNOWN_DAYS,
    forecast_period,
)
from telemetry.budgets.commitments import committed_spend
from telemetry.budgets.spending import DailySpend, SpendScope
from telemetry.core.amounts import ZERO, round_amount
from telemetry.core.currencies import smallest_unit
from telemetry.core.spending.spend_forecast import SpendForecast
from telemetry.models import (
    BudgetMeasure,
    BudgetPeriod,
    OrganisationForecast,
    StatementDay,
    StatementLine,
)
from telemetry.money.billing_months import billing_calendar
from telemetry.money.pricing.billing_currencies import currency_of_month


def refresh_organisation_forecast(now: datetime) -> None:
    """Store the forecast of all charges in the present month, unless the stored forecast is recent."""
    calendar = billing_calendar()
    month = calendar.month_of(now)
    if OrganisationForecast.objects.filter(month=month, as_of__gt=now - FORECAST_INTERVAL).exists():
        return
    currency = currency_of_month(month)
    spent = _daily_spend(currency, calendar.day_of(now) - timedelta(days=HISTORY_DAYS))
    end = calendar.month_bounds(month)[1]
    forecast = forecast_month(spent, _committed(currency, now, end), now)
    if forecast is None:
        return
    lines = StatementLine.objects.filter(statement__month=month, currency=currency)
    charged = lines.aggregate(total=Sum("charged_cents"))["total"] or ZERO
    OrganisationForecast.objects.update_or_create(
        month=month,
        defaults={
            "currency": currency,
            **month_range(forecast, spent, charged, month, currency),
            "past_periods": forecast.past_periods,
            "past_inside": forecast.past_inside,
            "past_error": forecast.past_error,
            "as_of": now,
        },
    )


def forecast_month(
    spent: Mapping[date, float], committed: Mapping[date, float], now: datetime
) -> SpendForecast | None:
    """Return the forecast of the month of ``now``; None if fewer than three whole days are known.

    ``spent`` has the spending of each day in the last months. ``committed`` has the certain future spending.
    """
    today = billing_calendar().day_of(now)
    if min(spent, default=today) > today - timedelta(days=MIN_KNOWN_DAYS):
        return None
    return forecast_period(dict(spent), dict(committed), BudgetPeriod.MONTH, now)


def month_range(
    forecast: SpendForecast, spent: Mapping[date, float], charged: Decimal, month: date, currency: str
) -> dict[str, Decimal]:
    """Return ``expected``, ``low`` and ``high`` in cents, with the corrections of earlier months.

    ``charged`` is the amount on the statement so far. It includes corrections of earlier months, which belong
    to no day of this month.
    """
    unit = smallest_unit(currency)
    known = sum(amount for day, amount in spent.items() if day.replace(day=1) == month)
    other = charged - Decimal(str(known))
    figures = {"expected": forecast.expected, "low": forecast.low, "high": forecast.high}
    return {name: round_amount(Decimal(str(value)) + other, unit) for name, value in figures.items()}


def _daily_spend(currency: str, since: date) -> DailySpend:
    """Return the charges of each day since a day. A correction counts on the day that it corrects."""
    days = StatementDay.objects.filter(day__gte=since, currency=currency)
    rows = days.values_list("day").annotate(total=Sum("charged_cents")).order_by("day")
    return {day: float(total) for day, total in rows}


def _committed(currency: str, now: datetime, end: datetime) -> DailySpend:
    scopes = [SpendScope(team=team, currency=currency) for team in Team.objects.values_list("pk", flat=True)]
    found: DailySpend = defaultdict(float)
    for days in committed_spend(scopes, BudgetMeasure.MONEY, now, end).values():
        for day, amount in days.items():
            found[day] += amount
    return found
