"""Read the filters of charges from an address, and make addresses with filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from portal.input_checks import display_value
from portal.models import User
from portal.reads.money import chargeback as reads
from portal.reads.money.charge_filters import FILTERS, checked_filters, filtered_teams
from portal.reads.money.exports import checked_dialect, refuse_dialect
from portal.web.money.filter_query import filter_query
from portal.web.page.access import InvalidAddress, address_checks, check_parameters
from portal.wording.pages.money import export_texts, money_pages
from telemetry.core.csv_text import CsvDialect
from telemetry.models import Budget
from telemetry.reads.chargeback import filter_text

DIMENSION_LABELS = {
    "cost_centre": "Cost centre",
    "team": "Team",
    "project": "Project",
    "user": "Person",
    "workload": "Workload",
    "type": "Workload type",
    "pool": "Pool",
    "model": "Model",
    "bucket": "Bucket",
    "day": "Day",
    "last_day": "Up to",
    "corrected_month": "Corrected month",
}
FORMATS = ("csv",)


def requested_filters(
    request: HttpRequest, viewer: User, month: date, parameters: tuple[str, ...]
) -> dict[str, Any]:
    """Return the filters in the query string, by name.

    ``parameters`` are the other parameters of the page. Raises InvalidAddress for an unknown parameter, and
    for a value that does not exist or that the viewer may not see.
    """
    check_parameters(request, (*parameters, *FILTERS))
    with address_checks():
        return checked_filters(viewer, month, request.GET)


def requested_format(request: HttpRequest) -> str:
    """Return the format of ``?format=``; "" for the page.

    Raises InvalidAddress for an unknown format, and for a separator or a decimal sign without a CSV file.
    """
    wanted = requested_choice(request, "format", FORMATS, "")
    if wanted != "csv":
        with address_checks():
            refuse_dialect(request.GET, export_texts.DIALECT_WITHOUT_CSV)
    return wanted


def requested_dialect(request: HttpRequest) -> CsvDialect:
    """Return the separator and the decimal sign of the CSV file that the address asks for."""
    with address_checks():
        return checked_dialect(request.GET)


def requested_choice(request: HttpRequest, name: str, allowed: tuple[str, ...], default: str) -> str:
    """Return the value of a parameter. Raises InvalidAddress if it is not one of ``allowed``."""
    given = request.GET.get(name) or default
    if given != default and given not in allowed:
        words = money_pages.FILTER_UNKNOWN
        raise InvalidAddress(words.format(field=name, given=display_value(given), allowed=", ".join(allowed)))
    return given


def lines_url(month: date, where: Mapping[str, Any]) -> str:
    """Return the address of the charge lines with these filters."""
    return f"{reverse('charge-lines')}?{filter_query(month, where)}"


def breadcrumbs(month: date, where: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the steps from the month to these filters, each with its label and address."""
    steps = [{"label": f"{month:%B %Y}", "url": f"{reverse('chargeback')}?{filter_query(month, {})}"}]
    path: dict[str, Any] = {}
    for name, value in where.items():
        path[name] = value
        label = f"{DIMENSION_LABELS[name]} {_value_label(name, value, month)}"
        steps.append({"label": label, "url": f"{reverse('chargeback')}?{filter_query(month, path)}"})
    return steps


def _value_label(name: str, value: Any, month: date) -> str:
    if name == "corrected_month":
        return f"{value:%B %Y}" if isinstance(value, date) else filter_text(name, value)
    if name in ("day", "last_day"):
        return f"{value:%-d %B %Y}"
    if isinstance(value, tuple):
        return ", ".join(value)
    return reads.dimension_name(name, value, month)


def linked_budgets(user: User, month: date, budgets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of budgets, each with the address of its charge lines. The address is empty if the
    viewer may not filter charges by the owner of the budget.
    """
    teams = filtered_teams(user) if budgets else None
    rows = []
    for row in budgets:
        budget: Budget = row["budget"]
        team = budget.project.team_id if budget.project else budget.team_id
        is_linked = teams is None or team in teams
        rows.append({**row, "url": _budget_url(month, budget) if is_linked else ""})
    return rows


def _budget_url(month: date, budget: Budget) -> str:
    """Return the address of the charge lines of a month that count against a budget."""
    if budget.cost_centre:
        return lines_url(month, {"cost_centre": budget.cost_centre})
    if budget.project_id is not None:
        return lines_url(month, {"project": budget.project_id})
    return lines_url(month, {"team": budget.team_id})
