"""Compare the rows of a month's charges with the month before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db.models import F, QuerySet, Sum

from telemetry.core.billing_calendar import next_month, previous_month
from telemetry.models import ChargeCell, Statement, StatementLine, StatementLineDay
from telemetry.money.billing_months import billing_calendar
from telemetry.money.pricing.billing_currencies import currency_of_month
from telemetry.reads.chargeback import CELL_DIMENSIONS, any_condition, charged_lines, sum_column


@dataclass(frozen=True)
class ChargesBefore:
    """The charges of two months by the keys of a row, in cents: of the compared days, without corrections.

    ``now`` is None if all days of the month are compared; then they are the charges of the month.
    """

    before: Mapping[tuple[Any, ...], Decimal]
    now: Mapping[tuple[Any, ...], Decimal] | None


def compared_day_count(month: date, now: datetime) -> int | None:
    """Return how many days of a month are compared with the same days of the month before.

    None means all days of both months: the month is over. In the present month, only whole days are compared,
    so the count is 0 on its first day.
    """
    today = billing_calendar().day_of(now)
    return None if today >= next_month(month) else max(0, (today - month).days)


def is_compared(month: date, days: int | None) -> bool:
    """Return True if a month can be compared with the month before.

    At least one day is compared, the month before has a statement, and both have the same currency.
    """
    if days == 0:
        return False
    former = previous_month(month)
    has_statement = Statement.objects.filter(month=former).exists()
    return has_statement and currency_of_month(former) == currency_of_month(month)


def charges_before(
    dimensions: Sequence[str],
    month: date,
    days: int | None,
    cells: QuerySet[ChargeCell] | None,
    selected: Collection[Mapping[str, Any]],
) -> ChargesBefore:
    """Return the charges of the rows of a tree in ``days`` days of a month, and of the month before.

    ``selected`` are the filters of the rows above, as in ``charges_by_path``. ``cells`` are the cells that
    the viewer may see. Runs one query for each month that it sums.
    """
    former = previous_month(month)
    until = None if days is None else min(former + timedelta(days=days), month)
    return ChargesBefore(
        before=_sums(dimensions, former, until, cells, selected),
        now=None if days is None else _sums(dimensions, month, month + timedelta(days=days), cells, selected),
    )


def _sums(
    dimensions: Sequence[str],
    month: date,
    until: date | None,
    cells: QuerySet[ChargeCell] | None,
    selected: Collection[Mapping[str, Any]],
) -> dict[tuple[Any, ...], Decimal]:
    """Return the charges of a month before the day ``until``; None means of the whole month."""
    names = {*dimensions, *(name for where in selected for name in where)}
    from_lines = cells is None and until is None and not CELL_DIMENSIONS & names
    found: QuerySet[Any] = StatementLine.objects.all() if from_lines else _cells_or_days(names, cells)
    if until is not None:
        found = found.filter(day__lt=until)
    line = "" if from_lines else "line__"
    found = found.filter(
        charged_lines(line),
        any_condition(selected, from_cells=not from_lines),
        **{"statement__month": month, f"{line}shared_out": False, f"{line}corrected_month": None},
    )
    keys = {f"key_{at}": F(sum_column(name, from_cells=not from_lines)) for at, name in enumerate(dimensions)}
    rows = found.order_by().values(**keys).annotate(charged_sum=Sum("charged_cents"))
    return {tuple(row[name] for name in keys): row["charged_sum"] for row in rows}


def _cells_or_days(names: Collection[str], cells: QuerySet[ChargeCell] | None) -> QuerySet[Any]:
    """Return the days of statement lines if they have the columns ``names``, otherwise the visible cells."""
    if cells is not None:
        return cells
    only_cells_have = CELL_DIMENSIONS - {"day"}
    return ChargeCell.objects.all() if only_cells_have & set(names) else StatementLineDay.objects.all()
