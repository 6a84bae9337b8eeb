"""Render the page of chargeback: the charges of a month by group, with checks and budgets."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone

from portal import policy
from portal.reads.money import chargeback as reads
from portal.web.money.charge_drill_down import (
    DIMENSION_LABELS,
    breadcrumbs,
    drill_down_filters,
    group_choices,
    group_row,
    grouping_dimension,
    workload_charge_lines,
)
from portal.web.money.chargeback_csv import charge_groups_csv, csv_file_response
from portal.web.money.months import month_or_404, offset_month
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.organisation import current_currency
from telemetry.money import statement_export
from telemetry.money.billing_months import month_bounds, month_of, next_month
from telemetry.money.close_checks import close_checks
from telemetry.reads.chargeback import charges_by


# Not split: the function builds one dict for the page, whose values share the month and the filters.
@sign_in_required
def chargeback(request: HttpRequest) -> HttpResponseBase:
    """Render the charges of ``?month=``.

    They are grouped by ``?by=``. With filters, the group is the level that follows the last filter.
    """
    user, now = current_user(request), timezone.now()
    month = month_or_404(request.GET.get("month"), now)
    lines = policy.visible_charges(user)
    where = drill_down_filters(request)
    dimension = grouping_dimension(request, where)
    if request.GET.get("format") == "statement":
        policy.require(user, "charges.see_all")
        return csv_file_response(
            statement_export.statement_csv(month, current_currency(request)), f"statement-{month:%Y-%m}.csv"
        )
    if dimension is None:
        return workload_charge_lines(request, month, lines, where, now)
    table = charges_by(dimension, month, lines, **where)
    if request.GET.get("format") == "csv":
        return charge_groups_csv(table, dimension, month, policy.sees_owner_cost(user))
    see_all = policy.may(user, "charges.see_all")
    statement = reads.statement_of(month)
    context = {
        "month": month,
        "months": reads.charged_months(now),
        "previous": offset_month(month, -1),
        "next": next_month(month) if next_month(month) <= month_of(now) else None,
        "closed": statement is not None and statement.state == "closed",
        "statement": statement,
        "see_all": see_all,
        "conservation": reads.conservation_equation(month) if see_all and not where else None,
        "table": table,
        "rows": [group_row(request, group, dimension) for group in table.groups],
        "dimension": DIMENSION_LABELS[dimension],
        "choices": group_choices(request, dimension) if not where else [],
        "path": breadcrumbs(request, month, lines, where),
        "budgets": reads.budget_rows(user, month, now),
        "checks": close_checks(month) if see_all and month < month_of(now) and not where else None,
        "may_close": policy.may(user, "statement.close") and month < month_of(now),
        "may_price": policy.may(user, "price.change"),
        "may_budget": policy.may(user, "budget.change"),
        "simulated": reads.is_simulated(month),
        "period": month_bounds(month),
        "now": now,
    }
    return render(request, "manage/chargeback.html", context)
