"""Prepare the figures above the table of the chargeback page for their templates."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

from django.urls import reverse

from portal.reads.money.overview.equation import EquationTerm, MonthEquation
from portal.reads.money.overview.page import ChargebackOverview
from portal.web.components.quantities import amount
from portal.web.money.filter_query import filter_query
from portal.web.money.overview.addresses import lines_url
from portal.web.money.overview.bridge_rows import bridge_panel, signed
from portal.web.money.overview.spend_chart import spend_chart
from portal.wording.chargeback import overview_texts as texts
from telemetry.core.billing_calendar import previous_month
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.money.reconciliation import IDLE_BUCKETS, OVERHEAD_BUCKETS, UNCHARGED_BUCKETS

# The buckets of the charge lines behind each term. All lines are behind the cost.
TERM_BUCKETS: dict[str, tuple[str, ...]] = {
    "charged": tuple(sorted(CHARGED_BUCKETS)),
    "margin": tuple(sorted(CHARGED_BUCKETS)),
    "not_sold": (*IDLE_BUCKETS, *UNCHARGED_BUCKETS),
    "overhead": OVERHEAD_BUCKETS,
}


def overview_context(overview: ChargebackOverview) -> dict[str, Any]:
    """Return the context of the templates: months, hero, equation, spend and bridge."""
    return {
        "months": _month_strip(overview),
        "hero": hero_context(overview),
        "equation": _equation(overview) if overview.equation else None,
        "spend": _spend(overview),
        "bridge": bridge_panel(overview),
        "currency": overview.currency,
        "month": overview.month,
    }


def _month_strip(overview: ChargebackOverview) -> list[dict[str, Any]]:
    """Return one entry for each month. Bars have a common scale only if all months have one currency."""
    one_currency = len({each.currency for each in overview.months}) == 1
    amounts = [each.charged for each in overview.months]
    if overview.forecast:
        amounts.append(overview.forecast.expected)
    scale = max(float(max(amounts, default=Decimal(0))), 0.01)
    entries = []
    for number, each in enumerate(overview.months):
        is_this = each.month == overview.month
        expected = overview.forecast.expected if overview.forecast and is_this else each.charged
        entries.append(
            {
                "label": texts.month_label(each.month, number == 0 or each.month.month == 1),
                "description": texts.month_description(each.month, each.charged, each.currency, each.closed),
                "amount": f"{each.charged:,.0f}",
                "currency": "" if one_currency else each.currency,
                "closed": each.closed,
                "current": is_this,
                "url": f"?month={each.month:%Y-%m}",
                "scale": scale if one_currency else None,
                "charged": max(each.charged, Decimal(0)),
                "rest": expected - each.charged,
            }
        )
    return entries


def hero_context(overview: ChargebackOverview) -> dict[str, Any]:
    """Return the figures of the month: charges, change, forecast and budget."""
    change, forecast, budget = overview.change, overview.forecast, overview.budget
    currency = overview.currency
    return {
        "title": "Charged" if overview.is_over else "Charged so far",
        "charged": amount(overview.charged, currency),
        "use": texts.use_text(overview.gpu_hours, overview.elapsed_days, overview.coverage),
        "compared": _compared_days(overview),
        "change": None if change.amount is None else signed(change.amount, currency),
        "direction": "" if not change.amount else "up" if change.amount > 0 else "down",
        "share": texts.share_text(change.share),
        "former": _former_text(overview),
        "forecast": None if forecast is None else amount(forecast.expected, currency),
        "range": ""
        if forecast is None
        else f"{amount(forecast.low, currency)} to {amount(forecast.high, currency)}",
        "forecast_text": texts.forecast_text(forecast, overview.is_over),
        "budget": None if budget is None else _budget(overview),
    }


def _compared_days(overview: ChargebackOverview) -> str:
    days = overview.change.days
    if days is None or overview.change.bridge is None:
        return f"{previous_month(overview.month):%B}"
    return texts.days_text(days.before.month, days.before.until, days.before.is_whole)


def _former_text(overview: ChargebackOverview) -> str:
    change, former = overview.change, overview.change.former
    if change.missing or former is None:
        return texts.missing_change_text(
            change.missing, previous_month(overview.month), former.currency if former else ""
        )
    return texts.former_text(former.month, amount(former.charged, former.currency), former.closed)


def _budget(overview: ChargebackOverview) -> dict[str, Any]:
    """Return the budget with its bar. The forecast is in the bar only if it is of the same charges."""
    budget, forecast = overview.budget, overview.forecast
    assert budget is not None
    spent, limit = float(budget.spent), float(budget.amount)
    expected = float(forecast.expected) if forecast and budget.covers_all else None
    end = max(spent, expected or 0.0)
    return {
        "left": amount(budget.left, overview.currency),
        "amount": amount(budget.amount, overview.currency),
        "is_over": budget.left < 0,
        "text": texts.budget_text(
            budget.kind, budget.names, budget.covers_all, amount(budget.spent, overview.currency)
        ),
        "scale": max(limit, end) * 1.05 or 1.0,
        "used": min(spent, limit),
        "expected": max(0.0, min(end, limit) - min(spent, limit)),
        "over": max(0.0, end - limit),
        "mark": limit,
        "bar_text": texts.budget_bar_text(
            spent / limit if limit else 1.0, None if expected is None or not limit else expected / limit
        ),
    }


def _equation(overview: ChargebackOverview) -> dict[str, Any]:
    equation = overview.equation
    assert equation is not None
    difference = amount(equation.difference, overview.currency)
    return {
        "finding": texts.equation_finding(equation.holds, difference),
        "terms": [
            {
                "label": texts.TERM_LABELS[term.key],
                "amount": amount(term.amount, overview.currency),
                "operator": "" if number == 0 else {1: "+", -1: "−", 0: "="}[term.sign],
                "operator_name": texts.SIGN_NAMES[term.sign],
                "url": _term_url(term, equation, overview.month),
            }
            for number, term in enumerate(equation.terms)
        ],
        "difference": difference,
        "holds": equation.holds,
        "pools": [{"name": pool.pool or texts.NO_POOL, "amounts": pool.amounts} for pool in equation.pools]
        if len(equation.pools) > 1
        else (),
        "at_close": overview.closed,
    }


def _term_url(term: EquationTerm, equation: MonthEquation, month: date) -> str:
    """Return the address of the charge lines behind a term; of the adjustments for the term ``adjusted``.

    Shares of idle time and adjustments have no charge lines. A charge that contains them opens the table by
    bucket, whose total it is.
    """
    if term.key == "adjusted":
        return f"{reverse('adjustments')}?month={month:%Y-%m}"
    if term.key == "charged" and (equation.idle_shared or equation.adjusted):
        return f"{reverse('chargeback')}?{filter_query(month, {}, by='bucket')}"
    buckets = TERM_BUCKETS.get(term.key)
    return lines_url(month, bucket=",".join(buckets)) if buckets else lines_url(month)


def _spend(overview: ChargebackOverview) -> dict[str, Any]:
    budget = overview.budget
    limit = budget.amount if budget and budget.covers_all else None
    return {
        "chart": spend_chart(overview),
        "finding": texts.spend_finding(
            overview.month,
            overview.charged,
            overview.currency,
            overview.forecast,
            overview.is_over,
            limit,
            budget.exceeded if budget else (),
        ),
        "csv": reverse("chargeback-days", args=[f"{overview.month:%Y-%m}"]),
    }
