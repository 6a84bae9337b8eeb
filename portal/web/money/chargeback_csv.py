"""Write the table of the chargeback page as CSV."""

from __future__ import annotations

from datetime import date
from typing import Any

from portal.reads.money.charge_scope import ChargeScope
from portal.streamed_file import StreamedFile
from portal.web.page.csv_export import complete_csv_response
from telemetry.reads.chargeback import ChargeGroup, ChargeTable

AMOUNT_COLUMNS = (
    "gpu_hours",
    "used",
    "idle",
    "unmeasured",
    "reserved_unused",
    "idle_share",
    "adjustment",
    "charged",
)
# The column that says whose charges the file has: a value of ``ChargeScope.kind``.
SCOPE_COLUMN = "scope"


def charge_groups_csv(
    table: ChargeTable, dimension: str, month: date, scope: ChargeScope, with_cost: bool
) -> StreamedFile:
    """Return the grouped charges as CSV. ``with_cost`` adds the cost that the GPUs have for their owner.

    The total is that of the month's own charges. A correction of a closed month is a row with that month.
    """
    head = (
        dimension,
        "corrected_month",
        *AMOUNT_COLUMNS,
        *_cost_column(with_cost),
        "coverage",
        "currency",
        SCOPE_COLUMN,
    )
    groups = [
        *((_group_name(group, dimension), group) for group in (*table.groups, *table.corrections)),
        ("total", table.total),
    ]
    rows = ([name, *_group_cells(group, with_cost), scope.kind] for name, group in groups)
    return complete_csv_response(f"charges-{month:%Y-%m}-by-{dimension}.csv", head, rows)


def _group_name(group: ChargeGroup, dimension: str) -> str:
    """Return the name of a row. A cost centre has its code only, so that the column can be looked up."""
    return str(group.key if dimension == "cost_centre" else group.name) or "none"


def _group_cells(group: ChargeGroup, with_cost: bool) -> list[Any]:
    parts = [group.used, group.idle, group.unmeasured, group.reserved_unused]
    parts += [group.idle_share, group.adjustment]
    cost = [group.cost] if with_cost else []
    coverage = None if group.coverage is None else f"{group.coverage:.4f}"
    corrected = _month_text(group.corrected_month)
    return [corrected, f"{group.gpu_hours:.4f}", *parts, group.charged, *cost, coverage, group.currency]


def _month_text(month: date | None) -> str | None:
    return None if month is None else f"{month:%Y-%m}"


def _cost_column(with_cost: bool) -> tuple[str, ...]:
    return ("cost",) if with_cost else ()
