"""Count the rows of the exports of a month, for the menu of exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from django.db.models import Count

from portal import policy
from portal.models import User
from telemetry.models import ChargeCell, StatementLine
from telemetry.reads.chargeback import CELL_DIMENSIONS, charge_lines, sums_condition

MAX_COUNTED_LINES = 100_000


@dataclass(frozen=True)
class ExportCounts:
    """The rows of the exports of a month: statement lines, cost centres, and charge lines.

    ``charge_lines`` is at most MAX_COUNTED_LINES + 1, which means more than MAX_COUNTED_LINES.
    """

    statement_lines: int
    cost_centres: int
    charge_lines: int


def export_counts(viewer: User, month: date, where: Mapping[str, Any]) -> ExportCounts:
    """Return the number of rows that the viewer gets with these filters. Runs two queries."""
    cells = policy.visible_cells(viewer)
    lines = charge_lines(month, policy.visible_charges(viewer), **where)
    counted: dict[str, int]
    if cells is None and not CELL_DIMENSIONS & set(where):
        rows = StatementLine.objects.filter(sums_condition(where, from_cells=False), shared_out=False)
        counted = rows.filter(statement__month=month).aggregate(
            lines=Count("pk"), centres=Count("cost_centre", distinct=True)
        )
    else:
        found = ChargeCell.objects.all() if cells is None else cells
        found = found.filter(sums_condition(where, from_cells=True), line__shared_out=False)
        counted = found.filter(statement__month=month).aggregate(
            lines=Count("line", distinct=True), centres=Count("line__cost_centre", distinct=True)
        )
    return ExportCounts(
        statement_lines=counted["lines"],
        cost_centres=counted["centres"],
        charge_lines=lines.order_by()[: MAX_COUNTED_LINES + 1].count(),
    )
