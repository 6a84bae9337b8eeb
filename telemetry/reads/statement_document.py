"""Return the rows of a cost centre's statement. Their amounts sum to its total.

The figures and names of a closed month are those at the time of its close.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db.models import Count, Max, Q, QuerySet, Sum, Value
from django.db.models.functions import Coalesce

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.amounts import ZERO, round_amount, split_amount
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.models import (
    ChargeBucketChoices,
    ChargeCell,
    CostCentreStatement,
    StatementLine,
    StatementState,
)
from telemetry.money.adjusting.approved_rows import ApprovedAdjustment, approved_adjustments
from telemetry.money.billing_months import month_bounds
from telemetry.money.rate_card import load_rates

HOUR_STEP = Decimal("0.001")
# Below SHORT_HOURS, the last decimals of a mean price would only show the rounding of the ledger's amounts.
PRICE_STEP, SHORT_PRICE_STEP, SHORT_HOURS = Decimal("0.0001"), Decimal("0.01"), Decimal("0.1")
# If there are more groups, the workloads of a person with the same type, model and bucket form one group.
MAX_GROUPS = 80
# Parts of a charge in the order of a document. An idle share is a part of the pool's idle time.
USED, IDLE, UNMEASURED = "used", "idle", "unmeasured"
RESERVED_UNUSED, IDLE_SHARE = "reserved_unused", "idle_share"
PARTS = (USED, IDLE, UNMEASURED, RESERVED_UNUSED, IDLE_SHARE)


@dataclass(frozen=True)
class DocumentRow:
    """One row of a document: a part of the charge for one workload, or for time without a workload.

    ``part`` is one of ``PARTS``. ``price`` is the mean price per GPU-hour; None for time without a price.
    ``workloads`` is the number of workloads of the row. If there are several, ``workload`` is empty.
    ``corrected_month`` is None for the use of the month itself. ``bucket`` and the ids say which charge lines
    are behind the row. ``workload_id`` is None if the row has no workload, or several.
    """

    project: str
    person: str
    workload: str
    workloads: int
    workload_type: str
    part: str
    model: str
    corrected_month: date | None
    gpu_hours: Decimal
    price: Decimal | None
    amount: Decimal
    bucket: str = ""
    project_id: int | None = None
    user_id: int | None = None
    workload_id: int | None = None

    @property
    def subject(self) -> tuple[object, ...]:
        """Return what the row is about. Rows of several months may have the same subject."""
        return (self.project_id, self.user_id, self.workload_id, self.workload_type, self.model, self.part)


@dataclass(frozen=True)
class CorrectedLine:
    """The line that a correction corrects.

    ``number`` is that of the corrected statement of the cost centre; empty if it had none. ``line`` is the
    place of the row on it, counted from 1; None if no row or several rows have the subject of the correction.
    """

    month: date
    number: str = ""
    line: int | None = None


@dataclass(frozen=True)
class StatementDocument:
    """The contents of a cost centre's statement. Its three lists of amounts sum to its total.

    ``rows`` are charges of the month itself, ``corrections`` those of earlier months, and ``adjustments`` the
    approved credits and manual adjustments. ``shown`` is the charge of teams with showback: it is in none of
    the lists, and not in the total.

    ``rate_dates`` are the dates of the prices in force in the month. ``parts`` has the amounts of ``rows`` by
    part. ``coverage`` is the measured part of the held time, from 0 to 1; None without held time.
    """

    statement: CostCentreStatement
    rows: tuple[DocumentRow, ...]
    corrections: tuple[DocumentRow, ...]
    teams: tuple[str, ...]
    rate_dates: tuple[datetime, ...]
    coverage: float | None
    adjustments: tuple[ApprovedAdjustment, ...] = ()
    shown: Decimal = ZERO

    @property
    def charged(self) -> Decimal:
        """Return the sum of the rows of the month itself."""
        return sum((row.amount for row in self.rows), ZERO)

    @property
    def corrected(self) -> Decimal:
        """Return the sum of the corrections of earlier months."""
        return sum((row.amount for row in self.corrections), ZERO)

    @property
    def adjusted(self) -> Decimal:
        """Return the sum of the adjustments."""
        return sum((row.amount for row in self.adjustments), ZERO)

    @property
    def parts(self) -> dict[str, Decimal]:
        """Return the amount of each part that has one, in the order of ``PARTS``."""
        sums = {part: sum((row.amount for row in self.rows if row.part == part), ZERO) for part in PARTS}
        return {part: amount for part, amount in sums.items() if amount}


def statement_document(statement: CostCentreStatement) -> StatementDocument:
    """Return the contents of a cost centre's statement. The number of queries does not depend on its size.

    A statement of an open month is not stored. Its contents are the present charges and names.
    """
    groups = _cell_sums(statement)
    rows = [row for group in groups for row in _document_rows(group)]
    rows.sort(key=_position)
    lines = StatementLine.objects.filter(
        statement=statement.statement, cost_centre=statement.cost_centre, currency=statement.currency
    )
    team = _name_column(statement, "team")
    teams = lines.exclude(team=None).values_list(team, flat=True).distinct()
    return StatementDocument(
        statement,
        tuple(row for row in rows if row.corrected_month is None),
        tuple(row for row in rows if row.corrected_month is not None),
        tuple(sorted(teams.order_by())),
        _rate_dates(statement, lines.filter(bucket__in=CHARGED_BUCKETS)),
        _coverage(groups),
        approved_adjustments(
            statement.statement,
            cost_centre=statement.cost_centre,
            currency=statement.currency,
            cell__line__showback=False,
        ),
        _shown(lines),
    )


def corrected_lines(document: StatementDocument) -> list[CorrectedLine]:
    """Return the line that each correction of a document corrects, in the order of the corrections.

    Reads each corrected statement of the cost centre once.
    """
    months = {row.corrected_month for row in document.corrections if row.corrected_month is not None}
    if not months:
        return []
    own = document.statement
    statements = CostCentreStatement.objects.filter(
        statement__month__in=months, cost_centre=own.cost_centre, currency=own.currency
    )
    found = {each.statement.month: each for each in statements.select_related("statement")}
    places = {month: _places(each) for month, each in found.items()}
    return [
        CorrectedLine(
            row.corrected_month,
            found[row.corrected_month].number,
            places[row.corrected_month].get(row.subject),
        )
        if row.corrected_month in found
        else CorrectedLine(row.corrected_month)
        for row in document.corrections
        if row.corrected_month is not None
    ]


def _places(statement: CostCentreStatement) -> dict[tuple[object, ...], int | None]:
    """Return the place of each row of a statement, counted from 1; None if several rows have one subject."""
    places: dict[tuple[object, ...], int | None] = {}
    for number, row in enumerate(statement_document(statement).rows, 1):
        places[row.subject] = None if row.subject in places else number
    return places


def _shown(lines: QuerySet[StatementLine]) -> Decimal:
    """Return the charge of the lines that are not invoiced."""
    shown = lines.filter(showback=True, shared_out=False)
    total: Decimal = shown.aggregate(total=Sum("charged_cents", default=ZERO))["total"]
    return total


def _name_column(statement: CostCentreStatement, owner: str) -> str:
    """Return the column of a line with the name of its project or team. A closed month has copied names."""
    is_closed = statement.statement.state == StatementState.CLOSED
    return f"{owner}_name" if is_closed else f"{owner}__name"


def _rate_dates(statement: CostCentreStatement, lines: QuerySet[StatementLine]) -> tuple[datetime, ...]:
    """Return the start dates of the prices that were in force for the lines of a month."""
    start, end = month_bounds(statement.statement.month)
    kinds = lines.exclude(pool=None).values_list("pool_id", "model").distinct().order_by()
    dates: set[datetime] = set()
    for rates in load_rates({(pool, model) for pool, model in kinds if pool is not None}).values():
        started = [rate.since for rate in rates if rate.since < end and rate.id is not None]
        dates |= {since for since in started if since > start} | set(
            [since for since in started if since <= start][-1:]
        )
    return tuple(sorted(dates))


def _cell_sums(statement: CostCentreStatement) -> list[dict[str, Any]]:
    """Return the sums of the cells of a document by project, person, workload, model and bucket.

    If there would be more than ``MAX_GROUPS`` groups, the workloads of a person with the same type, model and
    bucket form one group.
    """
    groups = _grouped_cells(statement)
    if sum(max(1, group["workloads"]) for group in groups) > MAX_GROUPS:
        return groups
    return _grouped_cells(statement, "workload_id")


def _grouped_cells(statement: CostCentreStatement, *more: str) -> list[dict[str, Any]]:
    """Return the sums of the cells by project, person, type, model and bucket, and the columns ``more``."""
    cells = ChargeCell.objects.filter(
        statement=statement.statement,
        line__cost_centre=statement.cost_centre,
        line__currency=statement.currency,
        line__shared_out=False,
        line__showback=False,
    ).filter(Q(line__bucket__in=CHARGED_BUCKETS) | Q(line__idle_share=True))
    groups = cells.order_by().values(
        "line__project_id",
        "user_id",
        "line__workload_type",
        "line__model",
        "line__bucket",
        "line__corrected_month",
        "line__idle_share",
        *more,
        project_name=Coalesce(f"line__{_name_column(statement, 'project')}", Value("")),
    )
    sums = groups.annotate(
        person=Max("user_name"),
        workload=Max("workload_name"),
        workloads=Count("workload_id", distinct=True),
        slots=Sum("slot_seconds"),
        covered=Sum("covered_slot_seconds"),
        used=Sum("used_slot_seconds"),
        charged=Sum("charged"),
        amount=Sum("charged_cents"),
        used_amount=Sum("used_cents"),
        idle_amount=Sum("idle_cents"),
    )
    return [dict(row) for row in sums if row["slots"] or row["amount"]]


def _document_rows(group: Mapping[str, Any]) -> Iterable[DocumentRow]:
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
    price = None if group["line__idle_share"] else _mean_price(group["charged"], group["slots"])
    for part, part_hours, amount in parts:
        if part_hours or amount:
            yield DocumentRow(
                project=group["project_name"],
                person=group["person"],
                workload=group["workload"] if group["workloads"] <= 1 else "",
                workloads=group["workloads"],
                workload_type=group["line__workload_type"],
                part=part,
                model=group["line__model"],
                corrected_month=group["line__corrected_month"],
                gpu_hours=part_hours,
                price=price,
                amount=amount,
                bucket=group["line__bucket"],
                project_id=group["line__project_id"],
                user_id=group["user_id"],
                workload_id=group.get("workload_id"),
            )


def _mean_price(charged: Decimal, slot_seconds: int) -> Decimal | None:
    """Return the mean price per GPU-hour. It equals the price if only one price was in force."""
    hours = Decimal(slot_seconds) / SLOT_SECONDS_PER_GPU_HOUR
    if not hours:
        return None
    return round_amount(charged / hours, PRICE_STEP if abs(hours) >= SHORT_HOURS else SHORT_PRICE_STEP)


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
