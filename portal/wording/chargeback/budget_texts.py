"""Describe budgets and the forecasts of their spending."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from portal.wording.formatting import Numbers
from telemetry.core.currencies import decimals_of
from telemetry.reads.budget_status import BudgetStatus, ForecastRange

BUDGET_OWNERS = {"cost_centre": "cost centre", "team": "team", "project": "project"}
# The keys of a request that name the owner of the budget, if it is not the team.
REQUESTED_OWNERS = ("project", "cost_centre")


def period_name(period: str, first: date) -> str:
    """Return the name of a period, such as "March 2026", "1st quarter of 2026" or "2026"."""
    if period == "year":
        return f"{first:%Y}"
    if period == "quarter":
        return f"{('1st', '2nd', '3rd', '4th')[(first.month - 1) // 3]} quarter of {first:%Y}"
    return f"{first:%B %Y}"


def forecast_record(forecast: ForecastRange | None, period: str) -> str:
    """Return a sentence about past forecasts at the same day of a period; empty without a past forecast."""
    if forecast is None or not forecast.past_periods:
        return ""
    periods = period if forecast.past_periods == 1 else f"{period}s"
    record = f"{forecast.past_inside} of {forecast.past_periods} {periods} ended inside the range"
    if forecast.past_error is None:
        return f"{record}."
    return f"{record}; the median error was {forecast.past_error * 100:.0f} %."


def request_summary(payload: Numbers) -> str:
    """Return a short text for a requested budget, such as ``a budget of 500.00 for March 2026``.

    The budget of a project or a cost centre has its owner: ``... for March 2026, project vision/mri``.
    """
    period = period_name(str(payload.get("period")), date.fromisoformat(str(payload.get("month"))))
    unit = str(payload.get("currency") or payload.get("measure"))
    amount = _amount(Decimal(str(payload.get("amount"))), unit)
    owner = next(
        (f", {BUDGET_OWNERS[key]} {payload[key]}" for key in REQUESTED_OWNERS if payload.get(key)), ""
    )
    return f"a budget of {amount} for {period}{owner}"


FINANCE_COMPARES = "Finance compares it with the present budget of {cost_centre}."


def request_effect(owner: str, payload: Numbers, status: BudgetStatus | None) -> str:
    """Return sentences about the effect of a requested budget. ``status`` is the present budget."""
    if status is None:
        return f"{owner} has no such budget now. When it is used up, people are only notified."
    unit = status.unit
    expected = ""
    if status.range is not None:
        low, high = _amount(status.range.low, unit), _amount(status.range.high, unit)
        expected = f" {_amount(status.range.expected, unit)} are forecast ({low} to {high})."
    return (
        f"{owner} has {_amount(status.amount, unit)} now, of which {_amount(status.spent, unit)} are "
        f"spent.{expected}"
    )


def _amount(amount: Decimal, unit: str) -> str:
    """Return an amount with its decimals. ``unit`` is "gpu_hours", a currency, or "money" in old requests."""
    if unit == "gpu_hours":
        return f"{amount:,.2f} GPU-hours"
    return f"{amount:,.{decimals_of(unit)}f}{'' if unit == 'money' else f' {unit}'}"
