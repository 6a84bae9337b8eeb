"""Build the panels of finance on the home page: spend of today, budgets near their limit, month to close."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from django.urls import reverse

from portal.models import User
from portal.reads.money.overview.month_figures import finance_figures, over_budget_names
from portal.web.components.quantities import amount, percent
from portal.web.home.panels import spending_panel, waiting_decisions
from portal.web.money.charges.addresses import linked_budgets
from portal.web.money.overview.context import hero_context
from portal.wording.home import dashboard_texts

MAX_BUDGETS = 8
MAX_UNUSUAL = 5


def finance_panels(user: User, currency: str, now: datetime, *, two_people: bool) -> dict[str, Any] | None:
    """Return the panels of finance; None for users who may not see all charges."""
    figures = finance_figures(user, now, two_people=two_people)
    if figures is None:
        return None
    overview, close = figures.overview, figures.close
    budgets = [
        {**row, "expected_percent": percent(row["expected_share"])}
        for row in linked_budgets(user, overview.month, figures.budgets[:MAX_BUDGETS])
    ]
    chargeback_url = f"{reverse('chargeback')}?month={figures.close_month:%Y-%m}"
    if close is not None:
        # Links to a part of the chargeback page lead from here to that page.
        checks = tuple(
            replace(check, url=chargeback_url + check.url) if check.url.startswith("#") else check
            for check in close.checks
        )
        close = replace(close, checks=checks)
    return {
        "today": amount(figures.today, overview.currency),
        "month": overview.month,
        "hero": hero_context(overview),
        "budgets": budgets,
        "budgets_finding": dashboard_texts.budgets_finding(
            over_budget_names(figures.budgets),
            sum(row["near_limit"] for row in figures.budgets),
            len(figures.budgets),
        ),
        "close": close,
        "close_month": figures.close_month,
        "chargeback_url": chargeback_url,
        "unusual": figures.unusual,
        "unusual_rows": figures.unusual.open[:MAX_UNUSUAL] if figures.unusual else [],
        "spending": spending_panel(user, currency, now),
        "decisions": waiting_decisions(user, now),
    }
