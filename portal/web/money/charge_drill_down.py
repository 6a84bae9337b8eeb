"""Drill down into the charges of a month.

The levels are cost centre, team, project, type and workload; the last level is the charge lines.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render

from portal import policy
from portal.input_checks import display_value
from portal.models import User
from portal.reads.money import chargeback as reads
from portal.reads.money.charge_filters import FILTERS, checked_filters
from portal.reads.money.charge_scope import ChargeScope
from portal.web.money.exports import export_choices, send_export
from portal.web.page.access import InvalidAddress, address_checks, current_user
from portal.wording.charge_line_texts import bucket_label
from portal.wording.pages import money_pages
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.reads.chargeback import DRILL_DOWN, charge_lines, charges_by

# Groupings of the first level: (dimension, label).
GROUP_CHOICES = (
    ("cost_centre", "Cost centre"),
    ("team", "Team"),
    ("project", "Project"),
    ("type", "Workload type"),
    ("user", "Person"),
    ("model", "Model"),
)
DIMENSION_LABELS = {**dict(GROUP_CHOICES), "workload": "Workload", "bucket": "Bucket", "pool": "Pool"}
FORMATS = ("csv",)
ADDRESS_PARAMETERS = ("month", "by", *FILTERS, "page", "format")
LINES_PER_PAGE = 50


def workload_charge_lines(
    request: HttpRequest, month: date, where: dict[str, Any], scope: ChargeScope, now: datetime
) -> HttpResponseBase:
    """Render the last level: the charge lines of one workload, each with its allocation."""
    user = current_user(request)
    if requested_format(request) == "csv":
        return send_export(user, month, where, {"kind": "lines"})
    lines = policy.visible_charges(user)
    rows = charge_lines(month, lines, **where)
    page = Paginator(
        rows.select_related("price", "priority_factor", "type_factor", "gpu__host", "pool"), LINES_PER_PAGE
    ).get_page(request.GET.get("page"))
    table = charges_by("bucket", month, policy.visible_cells(user), **where)
    context = {
        "month": month,
        "page": page,
        "rows": [
            {
                "line": line,
                "bucket": bucket_label(line),
                "gpu_hours": line.slot_seconds / SLOT_SECONDS_PER_GPU_HOUR,
            }
            for line in page
        ],
        "total": table.total,
        "corrected": table.corrected,
        "other_currencies": table.charged_in_other_currencies,
        "currency": table.currency,
        "charged": table.charged,
        "corrections": reads.correction_rows(user, month, where) if table.corrections else [],
        "path": breadcrumbs(request, month, where),
        "exports": export_choices(request, f"{month:%Y-%m}", scope),
        "workload": reads.charged_workload(user, where.get("workload")),
        "simulated": reads.is_simulated(month),
        "scope": scope,
        "now": now,
    }
    return render(request, "manage/charge_lines.html", context)


def drill_down_filters(request: HttpRequest, viewer: User, month: date) -> dict[str, Any]:
    """Return the filters in the query string, by dimension: the keys of the groups that were opened.

    Raises InvalidAddress for an unknown parameter, and for a key that the viewer may not see.
    """
    unknown = [name for name in request.GET if name not in ADDRESS_PARAMETERS]
    if unknown:
        allowed = ", ".join(ADDRESS_PARAMETERS)
        given = display_value(unknown[0])
        raise InvalidAddress(money_pages.PARAMETER_UNKNOWN.format(given=given, allowed=allowed))
    with address_checks():
        return checked_filters(viewer, month, request.GET)


def grouping_dimension(request: HttpRequest, where: dict[str, Any]) -> str | None:
    """Return the dimension that groups the charges at this level.

    Return None if the filters reach the last level, which shows charge lines without groups. Raises
    InvalidAddress if ``?by=`` names no grouping.
    """
    given = request.GET.get("by", DRILL_DOWN[0])
    if given not in dict(GROUP_CHOICES):
        allowed = ", ".join(dict(GROUP_CHOICES))
        raise InvalidAddress(
            money_pages.FILTER_UNKNOWN.format(field="by", given=display_value(given), allowed=allowed)
        )
    opened = [DRILL_DOWN.index(name) for name in where if name in DRILL_DOWN]
    if not opened:
        return given
    return DRILL_DOWN[max(opened) + 1] if max(opened) + 1 < len(DRILL_DOWN) else None


def requested_format(request: HttpRequest) -> str:
    """Return the format of ``?format=``; "" for the page. Raises InvalidAddress for an unknown format."""
    given = request.GET.get("format", "")
    if given and given not in FORMATS:
        words = money_pages.FILTER_UNKNOWN
        raise InvalidAddress(
            words.format(field="format", given=display_value(given), allowed=", ".join(FORMATS))
        )
    return given


def group_row(request: HttpRequest, group: Any, dimension: str) -> dict[str, Any]:
    """Return the row of a group, with the URL of the next level; "" if there is no next level."""
    query = request.GET.copy()
    for name in ("by", "page", "format"):
        query.pop(name, None)
    down = dimension in FILTERS
    if down:
        query[dimension] = "" if group.key is None else str(group.key)
    # Only the unused time of a dedicated pool is charged without a project.
    no_project = query.get("project") == ""
    name = group.name or (money_pages.DEDICATED_UNUSED if no_project else "none")
    return {"group": group, "url": f"?{query.urlencode()}" if down else "", "name": name}


def group_choices(request: HttpRequest, current: str) -> list[dict[str, Any]]:
    """Return the choices of ``?by=`` with their URLs."""
    rows = []
    for value, label in GROUP_CHOICES:
        query = request.GET.copy()
        query["by"] = value
        rows.append({"label": label, "url": f"?{query.urlencode()}", "current": value == current})
    return rows


def breadcrumbs(request: HttpRequest, month: date, where: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps from the month to this level, each with its label and URL."""
    steps: list[dict[str, Any]] = []
    query = request.GET.copy()
    for name in (*FILTERS, "page", "format", "by"):
        query.pop(name, None)
    steps.append({"label": f"{month:%B %Y}", "url": f"?{query.urlencode()}"})
    for name, key in where.items():
        query[name] = "" if key is None else str(key)
        label = reads.dimension_name(name, key, month)
        steps.append({"label": f"{DIMENSION_LABELS[name]} {label}", "url": f"?{query.urlencode()}"})
    return steps
