"""Render the page of chargeback: the charges of a month by group, with checks and budgets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money import chargeback as reads
from portal.reads.money.charge_scope import charge_scope
from portal.reads.money.closing.close_panel import ReadMonth, close_and_unusual
from portal.reads.money.exports import DIALECT_OPTIONS
from portal.reads.money.overview.month_figures import read_month
from portal.reads.money.overview.page import chargeback_overview
from portal.web.money.charges.addresses import (
    breadcrumbs,
    lines_url,
    linked_budgets,
    requested_dialect,
    requested_filters,
    requested_format,
)
from portal.web.money.charges.lines import charge_lines_under, correction_page, no_charges
from portal.web.money.charges.tree import tree_context, tree_file
from portal.web.money.charges.tree_address import TREE_PARAMETERS, tree_address
from portal.web.money.exports import export_menu
from portal.web.money.months import month_or_404, offset_month
from portal.web.money.overview.context import overview_context
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.organisation import current_organisation
from telemetry.money.billing_months import billing_calendar, month_bounds, month_of, next_month
from telemetry.money.closing.statement_months import load_statement_months

PARAMETERS = ("month", *TREE_PARAMETERS, "page", "corrections", "format", *DIALECT_OPTIONS)


@sign_in_required
def chargeback(request: HttpRequest) -> HttpResponseBase:
    """Render the charges of ``?month=`` as a tree, which ``charges/tree.py`` describes.

    If the filters reach a workload, the page is the list of its charge lines.
    """
    user, now = current_user(request), timezone.now()
    months = load_statement_months()
    first = min(months.first_charged or month_of(now), month_of(now))
    month, scope = month_or_404(request.GET.get("month"), now, first), charge_scope(user)
    if scope.kind == "none":
        return no_charges(request, month, scope)
    where = requested_filters(request, user, month, PARAMETERS)
    address, wanted = tree_address(request, where), requested_format(request)
    if not address.levels:
        return charge_lines_under(request, month, where, scope, now)
    if wanted == "csv":
        return tree_file(user, month, where, address, scope, requested_dialect(request), now)
    budgets = reads.budget_rows(user, month, now)
    two_people = bool(getattr(current_organisation(request), "two_step_close", False))
    read = read_month(user, month, where, months, two_people=two_people)
    context: dict[str, Any] = {
        **tree_context(user, month, where, address, budgets, now, read.months),
        **_month_context(user, month, where, now, read, first),
        "budgets": linked_budgets(user, month, budgets),
        "path": breadcrumbs(month, where),
        "lines_url": lines_url(month, where),
        "scope": scope,
        "organisation": getattr(current_organisation(request), "name", ""),
    }
    table = context["table"]
    context |= {
        "exports": export_menu(user, month, where, scope, is_closed=context["closed"], whole=read.counts),
        "currency": table.currency,
        "other_currencies": table.charged_in_other_currencies,
        "corrections": correction_page(
            request, month, where, table, table if address.by == "cost_centre" else None
        ),
    }
    context |= close_and_unusual(
        user,
        month,
        now,
        read,
        closed=context["closed"],
        equation=context["conservation"],
        filtered=bool(where),
    )
    if not where:
        overview = chargeback_overview(
            user,
            month,
            now,
            scope=scope,
            table=table,
            budgets=budgets,
            conservation=context["conservation"],
            statements=read.months,
        )
        context["overview"] = overview_context(overview)
        if context["total_since"] is not None and overview.change.amount is not None:
            # The rows of the tree have no corrections, which are separate rows. The total includes them.
            context["total_since"] = overview.change.amount
    return render(request, "manage/chargeback.html", context)


def _month_context(
    user: User, month: date, where: Mapping[str, Any], now: datetime, read: ReadMonth, first: date
) -> dict[str, Any]:
    """Return what the page shows about the month itself: its state, its checks and its neighbours.

    ``first`` is the first month with a charge.
    """
    see_all = policy.may(user, "charges.see_all")
    statement, is_over = read.statement, month < month_of(now)
    return {
        "month": month,
        "previous": offset_month(month, -1) if month > first else None,
        "next": next_month(month) if is_over else None,
        "closed": statement is not None and statement.state == "closed",
        "statement": statement,
        "see_all": see_all,
        "conservation": reads.conservation_equation(month, read.months, statement, read.lines)
        if see_all and not where
        else None,
        "simulated": bool(getattr(statement, "is_simulated", False)),
        "period": month_bounds(month),
        "zone": billing_calendar().zone_name(month),
        "now": now,
    }
