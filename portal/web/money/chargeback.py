"""Render the page of chargeback: the charges of a month by group, with checks and budgets."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone

from portal import policy
from portal.reads.money import chargeback as reads
from portal.reads.money.charge_scope import ChargeScope, charge_scope
from portal.reads.money.charged_months import first_charged_month
from portal.reads.money.closing.close_panel import close_and_unusual
from portal.web.money.charge_drill_down import (
    DIMENSION_LABELS,
    breadcrumbs,
    drill_down_filters,
    group_choices,
    group_row,
    grouping_dimension,
    requested_format,
    workload_charge_lines,
)
from portal.web.money.chargeback_csv import charge_groups_csv
from portal.web.money.exports import export_choices
from portal.web.money.months import month_or_404, offset_month
from portal.web.page.access import current_user, sign_in_required
from telemetry.money.billing_months import billing_calendar, month_bounds, month_of, next_month
from telemetry.reads.chargeback import charges_by


# Not split: the function builds one dict for the page, whose values share the month and the filters.
@sign_in_required
def chargeback(request: HttpRequest) -> HttpResponseBase:
    """Render the charges of ``?month=``.

    They are grouped by ``?by=``. With filters, the group is the level that follows the last filter.
    """
    user, now = current_user(request), timezone.now()
    month, scope = month_or_404(request.GET.get("month"), now), charge_scope(user)
    if scope.kind == "none":
        return _no_charges(request, month, scope)
    cells = policy.visible_cells(user)
    where = drill_down_filters(request, user, month)
    dimension, wanted = grouping_dimension(request, where), requested_format(request)
    if dimension is None:
        return workload_charge_lines(request, month, where, scope, now)
    table = charges_by(dimension, month, cells, **where)
    if wanted == "csv":
        return charge_groups_csv(table, dimension, month, scope, policy.sees_owner_cost(user))
    see_all = policy.may(user, "charges.see_all")
    statement = reads.statement_of(month)
    context: dict[str, Any] = {
        "month": month,
        "previous": offset_month(month, -1) if month > first_charged_month(now) else None,
        "next": next_month(month) if next_month(month) <= month_of(now) else None,
        "closed": statement is not None and statement.state == "closed",
        "statement": statement,
        "see_all": see_all,
        "conservation": reads.conservation_equation(month) if see_all and not where else None,
        "table": table,
        "currency": table.currency,
        "other_currencies": table.charged_in_other_currencies,
        "corrections": reads.correction_rows(user, month, where) if table.corrections else [],
        "rows": [group_row(request, group, dimension) for group in table.groups],
        "dimension": DIMENSION_LABELS[dimension],
        "exports": export_choices(request, f"{month:%Y-%m}", scope),
        "choices": group_choices(request, dimension) if not where else [],
        "path": breadcrumbs(request, month, where),
        "budgets": reads.budget_rows(user, month, now),
        "may_price": policy.may(user, "price.change"),
        "may_budget": policy.may(user, "budget.change"),
        "simulated": reads.is_simulated(month),
        "period": month_bounds(month),
        "zone": billing_calendar().zone_name(month),
        "scope": scope,
        "now": now,
    }
    context |= close_and_unusual(
        user, month, now, closed=context["closed"], equation=context["conservation"], filtered=bool(where)
    )
    return render(request, "manage/chargeback.html", context)


def _no_charges(request: HttpRequest, month: date, scope: ChargeScope) -> HttpResponseBase:
    """Render the page of a viewer who may see no charges. Raises NotAllowed for a download."""
    if "format" in request.GET:
        policy.require(current_user(request), "charges.see_all")
    return render(request, "manage/chargeback_none.html", {"month": month, "scope": scope})
