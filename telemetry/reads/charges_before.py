"""Compare the rows of a month's charges with the month before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db.models import F, Q, QuerySet, Sum

from telemetry.core.billing_calendar import next_month, previous_month
from telemetry.models import ChargeCell, StatementLine, StatementLineDay, StatementLinePerson
from telemetry.money.billing_months import billing_calendar
from telemetry.money.closing.statement_months import StatementMonths
from telemetry.reads.chargeback import CELL_DIMENSIONS, any_condition, charged_lines, sum_column


@dataclass(frozen=True)
class ChargesBefore:
    """The charges of the compared days of two months, by the keys of a row, in cents and without corrections.
    ``now`` is None if all days of the month are compared, because the caller knows the charges of the whole
    month.
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


def is_compared(month: date, days: int | None, months: StatementMonths) -> bool:
    """Return True if a month can be compared with the month before.

    At least one day is compared, the month before has a statement, and both have the same currency.
    ``months`` are the statements of all months.
    """
    if days == 0:
        return False
    former = previous_month(month)
    return months.has_statement(former) and months.currency_of(former) == months.currency_of(month)


def charges_before(
    dimensions: Sequence[str],
    month: date,
    days: int | None,
    cells: QuerySet[ChargeCell] | None,
    selected: Collection[Mapping[str, Any]],
) -> ChargesBefore:
    """Return the charges of the rows of a tree in ``days`` days of a month, and of the month before.

    ``selected`` are the filters of the rows above, as in ``charges_by_path``. ``cells`` are the cells that
    the viewer may see. Runs one query.
    """
    former = previous_month(month)
    parts: dict[date, date | None] = {former: None}
    if days is not None:
        parts = {former: min(former + timedelta(days=days), month), month: month + timedelta(days=days)}
    sums = _sums(dimensions, parts, cells, selected)
    return ChargesBefore(before=sums[former], now=sums.get(month))


def _sums(
    dimensions: Sequence[str],
    parts: Mapping[date, date | None],
    cells: QuerySet[ChargeCell] | None,
    selected: Collection[Mapping[str, Any]],
) -> dict[date, dict[tuple[Any, ...], Decimal]]:
    """Return the charges of several months by month and keys.

    ``parts`` has the day before which the charges of each month count; None means the whole month.
    """
    names = {*dimensions, *(name for where in selected for name in where)}
    from_lines = cells is None and not any(parts.values()) and not CELL_DIMENSIONS & names
    has_days = any(parts.values())
    found: QuerySet[Any] = (
        StatementLine.objects.all() if from_lines else _least_rows(names, cells, has_days=has_days)
    )
    of_parts = Q()
    for month, until in parts.items():
        of_parts |= Q(statement__month=month) & (Q() if until is None else Q(day__lt=until))
    line = "" if from_lines else "line__"
    found = found.filter(
        of_parts,
        charged_lines(line),
        any_condition(selected, from_cells=not from_lines),
        **{f"{line}shared_out": False, f"{line}corrected_month": None},
    )
    keys = {f"key_{at}": F(sum_column(name, from_cells=not from_lines)) for at, name in enumerate(dimensions)}
    rows = found.order_by().values(of_month=F("statement__month"), **keys)
    sums: dict[date, dict[tuple[Any, ...], Decimal]] = {month: {} for month in parts}
    for row in rows.annotate(charged_sum=Sum("charged_cents")):
        sums[row["of_month"]][tuple(row[name] for name in keys)] = row["charged_sum"]
    return sums


def _least_rows(
    names: Collection[str], cells: QuerySet[ChargeCell] | None, *, has_days: bool
) -> QuerySet[Any]:
    """Return the query with the fewest rows that has the needed columns: sums per day, sums per person, or
    cells. A viewer of some cells gets these cells. ``names`` are the dimensions and the filters. ``has_days``
    is True if only some days count.
    """
    if cells is not None:
        return cells
    needed = (CELL_DIMENSIONS & set(names)) | ({"day"} if has_days else set())
    if needed <= {"day"}:
        return StatementLineDay.objects.all()
    return StatementLinePerson.objects.all() if needed <= {"user"} else ChargeCell.objects.all()
