"""Render the list of charge lines under the filters of the address."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from django.core.paginator import Page, Paginator
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone

from portal import policy
from portal.reads.money import chargeback as reads
from portal.reads.money.charge_line_list import MAX_LISTED_LINES, charge_line_list
from portal.reads.money.charge_scope import ChargeScope, charge_scope
from portal.reads.money.exports import DIALECT_OPTIONS
from portal.web.money.charges.addresses import breadcrumbs, lines_url, requested_filters, requested_format
from portal.web.money.exports import export_menu, send_export
from portal.web.money.months import month_or_404
from portal.web.page.access import address_checks, current_user, sign_in_required
from portal.wording.chargeback.charge_line_texts import bucket_label
from telemetry.reads.chargeback import ChargeTable

PARAMETERS = ("month", "page", "corrections", "format", *DIALECT_OPTIONS)
CORRECTIONS_PER_PAGE = 25


@sign_in_required
def charge_lines_page(request: HttpRequest) -> HttpResponseBase:
    """Render the charge lines of ``?month=`` under the filters of the address, oldest first."""
    user, now = current_user(request), timezone.now()
    month, scope = month_or_404(request.GET.get("month"), now), charge_scope(user)
    if scope.kind == "none":
        return no_charges(request, month, scope)
    where = requested_filters(request, user, month, PARAMETERS)
    return charge_lines_under(request, month, where, scope, now)


def charge_lines_under(
    request: HttpRequest, month: date, where: dict[str, Any], scope: ChargeScope, now: datetime
) -> HttpResponseBase:
    """Render the charge lines of a month under checked filters; with ``?format=csv``, as a file."""
    user = current_user(request)
    if requested_format(request) == "csv":
        options = {name: request.GET[name] for name in DIALECT_OPTIONS if name in request.GET}
        with address_checks():
            return send_export(user, month, where, {"kind": "lines", **options})
    lines = charge_line_list(user, month, where, request.GET.get("page"))
    table, statement = lines.table, reads.statement_of(month)
    is_closed = statement is not None and statement.state == "closed"
    context = {
        "month": month,
        "page": lines.page,
        "rows": [{"row": row, "line": row.line, "bucket": bucket_label(row.line)} for row in lines.rows],
        "is_cut": lines.count is None,
        "most": MAX_LISTED_LINES,
        "shows_cost": lines.shows_cost,
        "total": table.total,
        "corrected": table.corrected,
        "other_currencies": table.charged_in_other_currencies,
        "currency": table.currency,
        "charged": table.charged,
        "corrections": correction_page(request, month, where, table),
        "path": breadcrumbs(month, where),
        "lines_url": lines_url(month, where),
        "exports": export_menu(user, month, where, scope, is_closed=is_closed, lines=lines.count),
        "simulated": reads.is_simulated(month),
        "scope": scope,
        "now": now,
    }
    return render(request, "manage/charge_lines.html", context)


def correction_page(
    request: HttpRequest,
    month: date,
    where: Mapping[str, Any],
    table: ChargeTable,
    by_cost_centre: ChargeTable | None = None,
) -> Page[Any]:
    """Return one page of the corrections of closed months. ``?corrections=`` is the number of the page.

    ``table`` is any table with these filters. ``by_cost_centre`` is such a table by cost centre, if the
    caller has one.
    """
    user = current_user(request)
    rows = reads.correction_rows(user, month, where, by_cost_centre) if table.corrections else []
    return Paginator(rows, CORRECTIONS_PER_PAGE).get_page(request.GET.get("corrections"))


def no_charges(request: HttpRequest, month: date, scope: ChargeScope) -> HttpResponseBase:
    """Render the page of a viewer who may see no charges. Raises NotAllowed for a download."""
    if "format" in request.GET:
        policy.require(current_user(request), "charges.see_all")
    return render(request, "manage/chargeback_none.html", {"month": month, "scope": scope})
