"""Drill down into the charges of a month.

The levels are cost centre, team, project, type and workload; the last level is the charge lines.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import render

from portal import policy
from portal.reads.money import chargeback as reads
from portal.web.money.chargeback_csv import MAX_CSV_LINES, charge_lines_csv
from portal.web.page.access import current_user
from portal.wording.pages import money_pages
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.models import Charge, ChargeBucketChoices
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
NUMERIC_DIMENSIONS = {"team", "project", "workload", "user", "pool"}  # their keys are primary keys
LINES_PER_PAGE = 50


def workload_charge_lines(
    request: HttpRequest, month: date, lines: QuerySet[Charge], where: dict[str, Any], now: datetime
) -> HttpResponseBase:
    """Render the last level: the charge lines of one workload, each with its allocation."""
    rows = charge_lines(month, lines, **where)
    if request.GET.get("format") == "csv":
        return charge_lines_csv(rows[:MAX_CSV_LINES], month, policy.sees_owner_cost(current_user(request)))
    page = Paginator(rows.select_related("price", "gpu__host", "pool"), LINES_PER_PAGE).get_page(
        request.GET.get("page")
    )
    table = charges_by("bucket", month, lines, **where)
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
        "path": breadcrumbs(request, month, lines, where),
        "workload": reads.charged_workload(current_user(request), where.get("workload")),
        "simulated": reads.is_simulated(month),
        "now": now,
    }
    return render(request, "manage/charge_lines.html", context)


def bucket_label(line: Charge) -> str:
    """Return the words for the bucket of a line. Unused time of a dedicated pool has words of its own."""
    if line.bucket == ChargeBucketChoices.RESERVED_UNUSED and line.reservation_id is None:
        return money_pages.DEDICATED_UNUSED_BUCKET
    return str(line.get_bucket_display())


def drill_down_filters(request: HttpRequest) -> dict[str, Any]:
    """Return the filters in the query string, by dimension: the keys of the groups that were opened."""
    filters: dict[str, Any] = {}
    for name in DRILL_DOWN:
        value = request.GET.get(name)
        if value is None:
            continue
        filters[name] = _filter_value(name, value)
    return filters


def _filter_value(name: str, value: str) -> Any:
    if name not in NUMERIC_DIMENSIONS:
        return value[:80]
    if value == "":
        return None
    if not value.isascii() or not value.isdigit() or len(value) > 18:
        raise Http404(money_pages.NOT_A_NUMBER.format(field=name, given=value[:20]))
    return int(value)


def grouping_dimension(request: HttpRequest, where: dict[str, Any]) -> str | None:
    """Return the dimension that groups the charges at this level.

    Return None if the filters reach the last level, which shows charge lines without groups.
    """
    given = request.GET.get("by")
    if not where:
        return given if given in dict(GROUP_CHOICES) and given is not None else DRILL_DOWN[0]
    taken = max(DRILL_DOWN.index(name) for name in where)
    return DRILL_DOWN[taken + 1] if taken + 1 < len(DRILL_DOWN) else None


def group_row(request: HttpRequest, group: Any, dimension: str) -> dict[str, Any]:
    """Return the row of a group, with the URL of the next level; "" if there is no next level."""
    query = request.GET.copy()
    for name in ("by", "page", "format"):
        query.pop(name, None)
    down = dimension in DRILL_DOWN
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


def breadcrumbs(
    request: HttpRequest, month: date, lines: QuerySet[Charge], where: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the steps from the month to this level, each with its label and URL."""
    steps: list[dict[str, Any]] = []
    query = request.GET.copy()
    for name in (*DRILL_DOWN, "page", "format", "by"):
        query.pop(name, None)
    steps.append({"label": f"{month:%B %Y}", "url": f"?{query.urlencode()}"})
    for name in DRILL_DOWN:
        if name in where:
            query[name] = "" if where[name] is None else str(where[name])
            label = reads.dimension_name(name, where[name], month, lines)
            steps.append({"label": f"{DIMENSION_LABELS[name]} {label}", "url": f"?{query.urlencode()}"})
    return steps
