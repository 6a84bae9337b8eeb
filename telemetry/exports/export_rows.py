"""Read the statement lines and the charge lines that an export contains."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from django.db.models import Sum

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.exports.export_model import ExportScope, MonthState
from telemetry.models import ChargeCell, Statement, StatementLine
from telemetry.money.adjusting.approved_rows import ApprovedAdjustment, approved_adjustments
from telemetry.money.billing_months import corrected_month
from telemetry.money.statement_lines import StatementEntry, entries_of_rows, statement_lines
from telemetry.reads.chargeback import CELL_DIMENSIONS, charge_lines, sums_condition

LINES_PER_FETCH = 5_000  # charge lines that are read from the database at once
SUM_COLUMNS = ("slot_seconds", "covered_slot_seconds", "used_slot_seconds", "charged_cents", "cost_cents")


class ExportedCharge(NamedTuple):
    """A charge line with the columns that exports show. Amounts have six decimals."""

    id: int
    start: datetime
    end: datetime
    bucket: str
    model: str
    slot_seconds: int
    price_per_gpu_hour: Decimal | None
    charged: Decimal
    cost: Decimal
    cost_centre: str
    share_percent: Decimal
    team: str
    project: str
    user: str
    workload: str
    allocation: int | None
    corrects: int | None
    simulated: bool
    currency: str | None
    priority_factor: Decimal | None
    type_factor: Decimal | None
    corrected_month: date | None

    @property
    def price_factor(self) -> Decimal:
        """Return the product of the factors on the price; 1 without factors."""
        return (self.priority_factor or Decimal(1)) * (self.type_factor or Decimal(1))

    @property
    def gpu_hours(self) -> Decimal:
        """Return the charged time in GPU-hours."""
        return Decimal(self.slot_seconds) / SLOT_SECONDS_PER_GPU_HOUR


# The sources of the columns of ``ExportedCharge``, in their order.
CHARGE_COLUMNS = (
    "pk",
    "start",
    "end",
    "bucket",
    "model",
    "slot_seconds",
    "price__price_per_gpu_hour",
    "charged",
    "cost",
    "cost_centre",
    "share_percent",
    "team_name",
    "project_name",
    "user_name",
    "workload_name",
    "allocation_id",
    "corrects_id",
    "simulated",
    "price__currency",
    "priority_factor__factor",
    "type_factor__factor",
)


def export_entries(month: date, scope: ExportScope, state: MonthState) -> list[StatementEntry]:
    """Return the statement lines of an export, in the order of the statement.

    With filters, and for people who do not see all charges, the amounts of a line are the sums of its visible
    cells.
    """
    if scope.is_whole:
        return statement_lines(month)
    return entries_of_rows(state.statement, _visible_rows(state.statement, scope)) if state.statement else []


def _visible_rows(statement: Statement, scope: ExportScope) -> list[StatementLine]:
    """Return the visible statement lines. Their figures are those of the visible charges."""
    rows = statement.lines.filter(shared_out=False).select_related("pool", "team", "project")
    if scope.cells is None and not CELL_DIMENSIONS & set(scope.where):
        return list(rows.filter(sums_condition(scope.where, from_cells=False)))
    cells = ChargeCell.objects.all() if scope.cells is None else scope.cells
    found = cells.filter(sums_condition(scope.where, from_cells=True), statement=statement)
    sums: dict[int, dict[str, Any]] = {
        row["line"]: dict(row)
        for row in found.order_by()
        .values("line")
        .annotate(**{f"{name}_sum": Sum(name) for name in SUM_COLUMNS})
    }
    parts = list(rows.filter(pk__in=sums))
    for part in parts:
        for name in SUM_COLUMNS:
            setattr(part, name, sums[part.pk][f"{name}_sum"])
    return parts


def export_adjustments(scope: ExportScope, state: MonthState) -> tuple[ApprovedAdjustment, ...]:
    """Return the approved adjustments of an export, in the order of their numbers."""
    if state.statement is None:
        return ()
    return approved_adjustments(state.statement, **adjustment_filters(scope))


def adjustment_filters(scope: ExportScope) -> dict[str, Any]:
    """Return the filters of Adjustment for the visible adjustments of an export."""
    if scope.is_whole:
        return {}
    cells = ChargeCell.objects.all() if scope.cells is None else scope.cells
    return {"cell__in": cells.filter(sums_condition(scope.where, from_cells=True))}


def export_charges(month: date, scope: ExportScope) -> Iterator[ExportedCharge]:
    """Yield the charge lines of an export, oldest first."""
    lines = charge_lines(month, scope.lines, **scope.where)
    rows: Iterator[tuple[Any, ...]] = lines.values_list(*CHARGE_COLUMNS, "day").iterator(
        chunk_size=LINES_PER_FETCH
    )
    for row in rows:
        yield ExportedCharge._make((*row[:-1], corrected_month(month, row[-1])))
