"""Read the metrics of money: charges, budgets and forecasts of the present month by team."""

from __future__ import annotations

from datetime import datetime

from portal.reads.monitoring.definitions import MetricValues
from portal.reads.people.staff_dashboard import team_month_costs
from telemetry.money.billing_months import month_of
from telemetry.money.pricing.billing_currencies import currency_of_month


def money_metrics(now: datetime) -> dict[str, MetricValues]:
    """Return the amounts of the finance panel of the home page, in the currency of the month."""
    currency = currency_of_month(month_of(now))
    lines = team_month_costs(now)
    return {
        "gpupool_team_month_charges": [((line.team.slug, currency), float(line.spent)) for line in lines],
        "gpupool_team_month_budget": [
            ((line.team.slug, currency), float(line.budget)) for line in lines if line.budget is not None
        ],
        "gpupool_team_month_forecast": [
            ((line.team.slug, currency), float(line.forecast)) for line in lines if line.forecast is not None
        ],
    }
