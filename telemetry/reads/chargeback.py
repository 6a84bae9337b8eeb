"""Return the charges of a month by cost centre, team, project or another dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from django.db.models import Count, F, FloatField, Q, QuerySet, Sum
from django.db.models.functions import Cast, Coalesce

from telemetry.core.amounts import CENT, ZERO, round_amount, round_parts
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.models import Charge, ChargeBucketChoices
from telemetry.reads.usage_filters import to_gpu_hours

# dimension -> (column of the group's key, column of its name)
CHARGE_DIMENSIONS: dict[str, tuple[str, str]] = {
    "cost_centre": ("cost_centre", "cost_centre"),
    "team": ("team_id", "team_name"),
    "project": ("project_id", "project_name"),
    "type": ("workload_type", "workload_type"),
    "workload": ("workload_id", "workload_name"),
    "user": ("user_id", "user_name"),
    "model": ("model", "model"),
    "bucket": ("bucket", "bucket"),
    "pool": ("pool_id", "pool__name"),
}
DRILL_DOWN = ("cost_centre", "team", "project", "type", "workload")


@dataclass(frozen=True)
class ChargeGroup:
    """One row of a chargeback table. ``charged = used + idle + reserved_unused + unmeasured``, to the cent.

    - ``used``: the charge of measured held time, in proportion to its utilisation.
    - ``idle``: the rest of the charge of measured held time.
    - ``unmeasured``: the charge of held time without samples.
    - ``reserved_unused``: the charge of reserved time in which no work ran.
    """

    key: Any
    name: str
    gpu_hours: float
    used: Decimal
    idle: Decimal
    unmeasured: Decimal
    reserved_unused: Decimal
    charged: Decimal
    cost: Decimal
    coverage: float | None
    lines: int


@dataclass(frozen=True)
class ChargeTable:
    """The groups of a table, highest charge first, and their total. Each money column sums to the total."""

    groups: list[ChargeGroup]
    total: ChargeGroup


def charge_lines(month: date, lines: QuerySet[Charge] | None = None, **where: Any) -> QuerySet[Charge]:
    """Return the lines on a month's statement, oldest first.

    ``where`` maps dimensions to the wanted keys. Raises ValueError for an unknown dimension.
    """
    unknown = sorted(set(where) - set(CHARGE_DIMENSIONS))
    if unknown:
        raise ValueError(f"where: {', '.join(unknown)} is not one of {', '.join(CHARGE_DIMENSIONS)}")
    found = (Charge.objects.all() if lines is None else lines).filter(month=month)
    found = found.filter(**{CHARGE_DIMENSIONS[name][0]: value for name, value in where.items()})
    return found.order_by("start", "pk")


def charges_by(
    dimension: str,
    month: date,
    lines: QuerySet[Charge] | None = None,
    *,
    charged_only: bool = True,
    **where: Any,
) -> ChargeTable:
    """Return a month's charges grouped by one dimension.

    ``lines`` are the lines that the viewer may see; None means all lines. ``where`` is the drill-down path:
    the key that the viewer has selected in each earlier dimension, in the order of selection. The total
    equals, to the cent, the row that was selected last.

    If ``charged_only`` is False, the table also includes idle, unhealthy and lost time with its cost. Runs
    one query per step of the path and one query for the table.
    """
    if dimension not in CHARGE_DIMENSIONS:
        raise ValueError(f"dimension: {dimension!r} is not one of {', '.join(CHARGE_DIMENSIONS)}")
    found = _filtered_lines(month, lines, charged_only, where)
    per_slot_second = Cast("charged", FloatField()) / Cast("slot_seconds", FloatField())
    busy = per_slot_second * F("evidence__used_slot_seconds")
    measured = per_slot_second * F("evidence__covered_slot_seconds")
    in_use = Q(bucket=ChargeBucketChoices.USED)
    groups = _group_amounts(
        found,
        dimension,
        slot_sum=Sum("slot_seconds"),
        held_sum=Coalesce(Sum("slot_seconds", filter=in_use), 0),
        covered_sum=Sum("evidence__covered_slot_seconds", filter=in_use),
        busy_sum=Sum(busy, filter=in_use),
        measured_sum=Sum(measured, filter=in_use),
        line_count=Count("pk"),
    )
    return _charge_table(groups, _parent_row_amounts(month, lines, charged_only, where))


# Sums of money. Each column is rounded separately.
MONEY_SUMS = {
    "charged_sum": Sum("charged"),
    "cost_sum": Sum("cost"),
    "reserved_sum": Coalesce(Sum("charged", filter=Q(bucket=ChargeBucketChoices.RESERVED_UNUSED)), ZERO),
}
RoundedAmounts = dict[str, Decimal]


def _filtered_lines(
    month: date, lines: QuerySet[Charge] | None, charged_only: bool, where: Mapping[str, Any]
) -> QuerySet[Charge]:
    found = charge_lines(month, lines, **where).order_by()
    return found.filter(bucket__in=CHARGED_BUCKETS) if charged_only else found


def _group_amounts(found: QuerySet[Charge], dimension: str, **more: Any) -> list[dict[str, Any]]:
    """Return the money sums of each group and the columns in ``more``, highest charge first.

    The order matters for rounding: of two groups with equal remainders, the earlier group is rounded up.
    """
    key, name = CHARGE_DIMENSIONS[dimension]
    rows = found.values(group_key=F(key), group_name=F(name)).annotate(**MONEY_SUMS, **more)
    return sorted(
        map(dict, rows), key=lambda row: (-row["charged_sum"], row["group_name"] or "", str(row["group_key"]))
    )


def _parent_row_amounts(
    month: date, lines: QuerySet[Charge] | None, charged_only: bool, where: Mapping[str, Any]
) -> RoundedAmounts | None:
    """Return the rounded amounts of the row that the drill-down path selected last; None without a path.

    Each table on the path is computed again, because its amounts are rounded so that they sum to the row
    above.
    """
    above: RoundedAmounts | None = None
    for step, dimension in enumerate(where):
        rows = _group_amounts(
            _filtered_lines(month, lines, charged_only, dict(list(where.items())[:step])), dimension
        )
        cents = _round_columns(rows, above)
        mine = [index for index, row in enumerate(rows) if str(row["group_key"]) == str(where[dimension])]
        # A key has several rows if its name changed within the month.
        above = {column: sum((parts[index] for index in mine), ZERO) for column, parts in cents.items()}
    return above


def _round_columns(
    rows: Sequence[Mapping[str, Any]], above: RoundedAmounts | None
) -> dict[str, list[Decimal]]:
    return {
        column: round_parts([row[column] for row in rows], total=above[column] if above else None)
        for column in MONEY_SUMS
    }


def _charge_table(rows: Sequence[dict[str, Any]], above: RoundedAmounts | None) -> ChargeTable:
    """Return the table with each column rounded by largest remainder.

    In each row, ``idle`` and ``unmeasured`` absorb the rounding difference.
    """
    charged, costs, reserved = _round_columns(rows, above).values()
    groups = [
        _charge_group(row, charged[index], costs[index], reserved[index]) for index, row in enumerate(rows)
    ]
    covered = [row["covered_sum"] for row in rows if row["covered_sum"] is not None]
    total = ChargeGroup(
        key=None,
        name="",
        gpu_hours=sum(group.gpu_hours for group in groups),
        used=_sum_amounts(group.used for group in groups),
        idle=_sum_amounts(group.idle for group in groups),
        unmeasured=_sum_amounts(group.unmeasured for group in groups),
        reserved_unused=_sum_amounts(group.reserved_unused for group in groups),
        charged=_sum_amounts(group.charged for group in groups),
        cost=_sum_amounts(group.cost for group in groups),
        coverage=_coverage(sum(covered) if covered else None, sum(row["held_sum"] for row in rows)),
        lines=sum(group.lines for group in groups),
    )
    return ChargeTable(groups, total)


def _charge_group(row: dict[str, Any], charged: Decimal, cost: Decimal, reserved: Decimal) -> ChargeGroup:
    """Return the group of one row with its rounded amounts.

    The charge of held time is divided into used, idle and unmeasured.
    """
    held = charged - reserved
    measured = min(held, _measured_cents(row["measured_sum"])) if held > 0 else ZERO
    used = min(measured, _measured_cents(row["busy_sum"]))
    return ChargeGroup(
        key=row["group_key"],
        name=row["group_name"] or "",
        gpu_hours=to_gpu_hours(row["slot_sum"]),
        used=used,
        idle=measured - used,
        unmeasured=held - measured,
        reserved_unused=reserved,
        charged=charged,
        cost=cost,
        coverage=_coverage(row["covered_sum"], row["held_sum"]),
        lines=row["line_count"],
    )


def _sum_amounts(amounts: Any) -> Decimal:
    return sum(amounts, ZERO)


def _measured_cents(amount: float | Decimal | None) -> Decimal:
    """Return an amount derived from measured use, in cents, never below zero."""
    return max(ZERO, round_amount(Decimal(str(amount or 0)), CENT))


def _coverage(covered: float | None, held: float) -> float | None:
    return min(1.0, covered / held) if covered is not None and held and held > 0 else None
