"""Read the charges of each day of a month. They are sums of the cents that all other views show."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from django.db.models import F, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.models import ChargeCell, StatementLineDay
from telemetry.reads.chargeback import CELL_DIMENSIONS, CHARGE_DIMENSIONS, charged_lines


@dataclass(frozen=True)
class DaySpend:
    """The charges of one day on the statement of ``month``, in cents of ``currency``.

    ``key`` is the key of the group in the chosen dimension; None without a dimension. ``corrected_month`` is
    None for the use of the month. Otherwise the row corrects that closed month, and ``day`` lies in it.
    ``slot_seconds`` are those of held and of reserved time; they do not include shared idle time.
    """

    month: date
    day: date
    key: Any
    corrected_month: date | None
    currency: str
    slot_seconds: int
    charged: Decimal


def daily_spend(
    months: Collection[date],
    cells: QuerySet[ChargeCell] | None = None,
    *,
    dimension: str = "",
    **where: Any,
) -> list[DaySpend]:
    """Return the charges of months by day and by an optional dimension, oldest day first.

    ``cells`` are the cells that the viewer may see; None means all. ``where`` maps dimensions to the wanted
    keys. The rows of a month sum to ``charges_by`` of the month with the same arguments. Runs one query.
    Raises ValueError for an unknown dimension.
    """
    for name in (*([dimension] if dimension else []), *where):
        if name not in CHARGE_DIMENSIONS:
            raise ValueError(f"dimension: {name!r} is not one of {', '.join(CHARGE_DIMENSIONS)}")
    found: QuerySet[Any] = StatementLineDay.objects.all()
    if cells is not None or CELL_DIMENSIONS & {dimension, *where}:
        found = ChargeCell.objects.all() if cells is None else cells
    found = found.filter(charged_lines("line__"), statement__month__in=months, line__shared_out=False)
    found = found.filter(**{_column(name): key for name, key in where.items()})
    held = Q(line__idle_share=False, line__bucket__in=CHARGED_BUCKETS)
    rows = (
        found.order_by()
        .values(
            "day",
            month=F("statement__month"),
            corrected=F("line__corrected_month"),
            line_currency=F("line__currency"),
            **({"group_key": F(_column(dimension))} if dimension else {}),
        )
        .annotate(seconds=Coalesce(Sum("slot_seconds", filter=held), 0), charged_sum=Sum("charged_cents"))
        .order_by("month", "day", *(["group_key"] if dimension else []))
    )
    return [
        DaySpend(
            month=row["month"],
            day=row["day"],
            key=row.get("group_key"),
            corrected_month=row["corrected"],
            currency=row["line_currency"],
            slot_seconds=row["seconds"],
            charged=row["charged_sum"],
        )
        for row in rows
        if row["seconds"] or row["charged_sum"]
    ]


def _column(dimension: str) -> str:
    key = CHARGE_DIMENSIONS[dimension][0]
    return key if dimension in CELL_DIMENSIONS else f"line__{key}"
