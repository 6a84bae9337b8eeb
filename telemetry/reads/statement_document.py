"""Return the rows of a cost centre's statement. Their amounts sum to its total.

All figures and names are those that the close froze.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from django.db.models import Max, Min, Q, Sum

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.amounts import ZERO, round_amount, split_amount
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.models import (
    Charge,
    ChargeBucketChoices,
    ChargeCell,
    CostCentreStatement,
    Price,
    StatementLine,
)

HOUR_STEP = Decimal("0.001")
# Parts of a charge in the order of a document. An idle share is a part of the pool's idle time.
USED, IDLE, UNMEASURED = "used", "idle", "unmeasured"
RESERVED_UNUSED, IDLE_SHARE = "reserved_unused", "idle_share"
PARTS = (USED, IDLE, UNMEASURED, RESERVED_UNUSED, IDLE_SHARE)


@dataclass(frozen=True)
class DocumentRow:
    """One row of a document: a part of the charge for one workload, or for time without a workload.

    ``part`` is one of ``PARTS``. ``price`` is per GPU-hour; None if the row has several prices, or none.
    ``corrected_month`` is None for the use of the month itself.
    """

    project: str
    person: str
    workload: str
    workload_type: str
    part: str
    model: str
    corrected_month: date | None
    gpu_hours: Decimal
    price: Decimal | None
    amount: Decimal


@dataclass(frozen=True)
class StatementDocument:
    """The contents of a cost centre's statement. ``rows`` and ``corrections`` sum to its total.

    ``prices`` are the lines of the rate card that it uses. ``parts`` has the amounts of ``rows`` by part.
    ``coverage`` is the measured part of the held time, from 0 to 1; None without held time.
    """

    statement: CostCentreStatement
    rows: tuple[DocumentRow, ...]
    corrections: tuple[DocumentRow, ...]
    teams: tuple[str, ...]
    prices: tuple[Price, ...]
    coverage: float | None

    @property
    def charged(self) -> Decimal:
        """Return the sum of the rows of the month itself."""
        return sum((row.amount for row in self.rows), ZERO)

    @property
    def corrected(self) -> Decimal:
        """Return the sum of the corrections of earlier months."""
        return sum((row.amount for row in self.corrections), ZERO)

    @property
    def parts(self) -> dict[str, Decimal]:
        """Return the amount of each part that has one, in the order of ``PARTS``."""
        sums = {part: sum((row.amount for row in self.rows if row.part == part), ZERO) for part in PARTS}
        return {part: amount for part, amount in sums.items() if amount}


def statement_document(statement: CostCentreStatement) -> StatementDocument:
    """Return the contents of a cost centre's statement. The number of queries does not depend on its size."""
    groups = _cell_sums(statement)
    prices = _prices_by_work(statement)
    rows = [row for group in groups for row in _document_rows(group, prices)]
    rows.sort(key=_position)
    lines = StatementLine.objects.filter(statement=statement.statement, cost_centre=statement.cost_centre)
    teams = lines.exclude(team_name="").values_list("team_name", flat=True).distinct()
    charges = Charge.objects.filter(month=statement.statement.month, cost_centre=statement.cost_centre)
    used_prices = Price.objects.filter(pk__in=charges.values("price")).order_by("model", "valid_from", "pk")
    return StatementDocument(
        statement,
        tuple(row for row in rows if row.corrected_month is None),
        tuple(row for row in rows if row.corrected_month is not None),
        tuple(sorted(teams.order_by())),
        tuple(used_prices),
        _coverage(groups),
    )


_WORK = ("line__project_id", "user_id", "workload_id", "line__model", "line__bucket")


def _cell_sums(statement: CostCentreStatement) -> list[dict[str, Any]]:
    """Return the sums of the cells of a document by project, person, workload, model and bucket."""
    cells = ChargeCell.objects.filter(
        statement=statement.statement, line__cost_centre=statement.cost_centre, line__shared_out=False
    ).filter(Q(line__bucket__in=CHARGED_BUCKETS) | Q(line__idle_share=True))
    groups = cells.order_by().values(
        *_WORK,
        "line__project_name",
        "line__workload_type",
        "line__corrected_month",
        "line__idle_share",
    )
    sums = groups.annotate(
        person=Max("user_name"),
        workload=Max("workload_name"),
        slots=Sum("slot_seconds"),
        covered=Sum("covered_slot_seconds"),
        used=Sum("used_slot_seconds"),
        amount=Sum("charged_cents"),
        used_amount=Sum("used_cents"),
        idle_amount=Sum("idle_cents"),
    )
    return [dict(row) for row in sums if row["slots"] or row["amount"]]


def _prices_by_work(statement: CostCentreStatement) -> dict[tuple[Any, ...], Decimal]:
    """Return the price per GPU-hour of each kind of work that has exactly one price."""
    lines = Charge.objects.filter(month=statement.statement.month, cost_centre=statement.cost_centre)
    columns = [column.removeprefix("line__") for column in _WORK]
    sums = (
        lines.order_by()
        .values_list(*columns)
        .annotate(low=Min("price__price_per_gpu_hour"), high=Max("price__price_per_gpu_hour"))
    )
    return {tuple(work): low for *work, low, high in sums if low is not None and low == high}


def _document_rows(
    group: Mapping[str, Any], prices: Mapping[tuple[Any, ...], Decimal]
) -> Iterable[DocumentRow]:
    """Yield one row per part of a group of cells. The hours of the parts sum to the hours of the group."""
    hours = round_amount(Decimal(group["slots"]) / SLOT_SECONDS_PER_GPU_HOUR, HOUR_STEP)
    amounts = {USED: group["used_amount"], IDLE: group["idle_amount"]}
    if group["line__idle_share"]:
        parts = [(IDLE_SHARE, hours, group["amount"])]
    elif group["line__bucket"] == ChargeBucketChoices.RESERVED_UNUSED:
        parts = [(RESERVED_UNUSED, hours, group["amount"])]
    else:
        amounts[UNMEASURED] = group["amount"] - sum(amounts.values(), ZERO)
        weights = _weights(group)
        split = split_amount(hours, weights, HOUR_STEP)
        parts = list(zip(amounts, split, amounts.values(), strict=True))
    price = None if group["line__idle_share"] else prices.get(tuple(group[column] for column in _WORK))
    for part, part_hours, amount in parts:
        if part_hours or amount:
            yield DocumentRow(
                project=group["line__project_name"],
                person=group["person"],
                workload=group["workload"],
                workload_type=group["line__workload_type"],
                part=part,
                model=group["line__model"],
                corrected_month=group["line__corrected_month"],
                gpu_hours=part_hours,
                price=price,
                amount=amount,
            )


def _weights(group: Mapping[str, Any]) -> list[int]:
    """Return the used, the idle and the unmeasured slot-seconds of held time."""
    total = abs(group["slots"])
    covered = min(round(abs(group["covered"] or 0)), total)
    used = min(round(abs(group["used"] or 0)), covered)
    return [used, covered - used, total - covered]


def _position(row: DocumentRow) -> tuple[object, ...]:
    return (
        row.corrected_month or date.min,
        row.part == IDLE_SHARE,
        row.project,
        row.person,
        row.workload,
        row.model,
        PARTS.index(row.part),
        row.workload_type,
        -row.amount,
    )


def _coverage(groups: Iterable[Mapping[str, Any]]) -> float | None:
    held = [
        group
        for group in groups
        if group["line__bucket"] == ChargeBucketChoices.USED and group["line__corrected_month"] is None
    ]
    slots = sum(group["slots"] for group in held)
    return min(1.0, sum(group["covered"] or 0 for group in held) / slots) if slots > 0 else None
