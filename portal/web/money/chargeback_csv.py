"""Write charges as CSV files."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from typing import Any

from django.http import HttpResponse

from portal.reads.money.charge_scope import ChargeScope
from portal.web.page.csv_export import CsvResponse, complete_csv_response
from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.models import Charge
from telemetry.money.billing_months import corrected_month
from telemetry.reads.chargeback import ChargeGroup, ChargeTable

AMOUNT_COLUMNS = ("gpu_hours", "used", "idle", "unmeasured", "reserved_unused", "idle_share", "charged")
LINE_COLUMNS = ("id", "start", "end", "bucket", "model", "gpu_seconds", "price_per_gpu_hour", "charged")
OWNER_COLUMNS = ("cost_centre", "team", "project", "user", "workload")
TRACE_COLUMNS = ("allocation", "corrects", "corrected_month", "simulated")
# The column that says whose charges the file has: a value of ``ChargeScope.kind``.
SCOPE_COLUMN = "scope"


def text_download(text: str, name: str, content_type: str) -> HttpResponse:
    """Return a text as a download."""
    response = HttpResponse(text, content_type=f"{content_type}; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def charge_groups_csv(
    table: ChargeTable, dimension: str, month: date, scope: ChargeScope, with_cost: bool
) -> CsvResponse:
    """Return the grouped charges as CSV. ``with_cost`` adds the cost that the GPUs have for their owner.

    The total is that of the month's own charges. A correction of a closed month is a row with that month.
    """
    head = (dimension, "corrected_month", *AMOUNT_COLUMNS, *_cost_column(with_cost), "coverage", SCOPE_COLUMN)
    groups = [
        *((group.name or "none", group) for group in (*table.groups, *table.corrections)),
        ("total", table.total),
    ]
    rows = ([name, *_group_cells(group, with_cost), scope.kind] for name, group in groups)
    return complete_csv_response(f"charges-{month:%Y-%m}-by-{dimension}.csv", head, rows)


def _group_cells(group: ChargeGroup, with_cost: bool) -> list[Any]:
    parts = [group.used, group.idle, group.unmeasured, group.reserved_unused, group.idle_share]
    cost = [group.cost] if with_cost else []
    coverage = None if group.coverage is None else f"{group.coverage:.4f}"
    corrected = _month_text(group.corrected_month)
    return [corrected, f"{group.gpu_hours:.4f}", *parts, group.charged, *cost, coverage]


def charge_lines_csv(rows: Iterable[Charge], month: date, scope: ChargeScope, with_cost: bool) -> CsvResponse:
    """Return charge lines as CSV. ``with_cost`` adds the cost that the GPUs have for their owner."""
    cost = _cost_column(with_cost)
    head = (*LINE_COLUMNS, *cost, *OWNER_COLUMNS, *TRACE_COLUMNS, SCOPE_COLUMN)
    cells = ([*_line_cells(line, with_cost), scope.kind] for line in rows)
    return complete_csv_response(f"charge-lines-{month:%Y-%m}.csv", head, cells)


def _line_cells(line: Charge, with_cost: bool) -> list[Any]:
    return [
        line.pk,
        line.start,
        line.end,
        line.bucket,
        line.model,
        Decimal(line.slot_seconds) / SLOTS_PER_GPU,
        line.price.price_per_gpu_hour if line.price else None,
        line.charged,
        *([line.cost] if with_cost else []),
        line.cost_centre,
        line.team_name,
        line.project_name,
        line.user_name,
        line.workload_name,
        line.allocation_id,
        line.corrects_id,
        _month_text(corrected_month(line.month, line.start)),
        line.simulated,
    ]


def _month_text(month: date | None) -> str | None:
    return None if month is None else f"{month:%Y-%m}"


def _cost_column(with_cost: bool) -> tuple[str, ...]:
    return ("cost",) if with_cost else ()
