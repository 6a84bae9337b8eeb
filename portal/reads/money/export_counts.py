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
from telemetry.reads.overview.line_counts import LineCounts

MAX_COUNTED_LINES = 20_000


@dataclass(frozen=True)
class ExportCounts:
    """The rows of the exports of a month: statement lines, cost centres, and charge lines.

    ``charge_lines`` is at most MAX_COUNTED_LINES + 1, which means more than MAX_COUNTED_LINES. It is None if
    the month has more than MAX_COUNTED_LINES lines and the viewer gets only some of them, because counting
    these would read all lines.
    """

    statement_lines: int
    cost_centres: int
    charge_lines: int | None


def export_counts(
    viewer: User,
    month: date,
    where: Mapping[str, Any],
    whole: LineCounts | None = None,
    lines: int | None = None,
) -> ExportCounts:
    """Return the number of rows that the viewer gets with these filters. Runs at most three queries.

    ``whole`` are the numbers of the month's lines, if the caller has them. They are used if the viewer sees
    all charges and there are no filters. ``lines`` is the number of charge lines, if the caller has it.
    """
    cells = policy.visible_cells(viewer)
    counted: dict[str, int]
    if whole is not None and cells is None and not where:
        counted = {"lines": whole.lines, "centres": whole.cost_centres}
    elif cells is None and not CELL_DIMENSIONS & set(where):
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
        charge_lines=_charge_line_count(viewer, month, where, sees_all=cells is None)
        if lines is None
        else lines,
    )


def _charge_line_count(viewer: User, month: date, where: Mapping[str, Any], *, sees_all: bool) -> int | None:
    """Return the value of ``ExportCounts.charge_lines``."""
    most = MAX_COUNTED_LINES + 1
    whole = charge_lines(month).order_by()[:most].count()
    if sees_all and not where:
        return whole
    if whole == most:
        return None
    return charge_lines(month, policy.visible_charges(viewer), **where).order_by().count()
