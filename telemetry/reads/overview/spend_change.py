"""Read the charges of two months up to the same day, in the groups that the bridge compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from django.db.models import Q, QuerySet, Sum

from telemetry.core.billing_calendar import next_month
from telemetry.core.charge_model import ADJUSTMENT_BUCKETS
from telemetry.core.currencies import smallest_unit
from telemetry.core.spending.spend_bridge import SpendBridge, SpendPart, spend_bridge
from telemetry.models import ChargeCell, StatementLine, StatementLineDay
from telemetry.reads.chargeback import charged_lines

_GROUP = ("project", "pool", "model", "workload_type", "bucket", "idle_share")


@dataclass(frozen=True)
class MonthPart:
    """A month up to a day.

    ``until`` is the day after the last day: for a whole month, the first of the next month.
    """

    month: date
    until: date

    @property
    def is_whole(self) -> bool:
        """Return True if the part has all days of the month."""
        return self.until >= next_month(self.month)

    @property
    def is_late(self) -> bool:
        """Return True if the part has more than half of the days of the month."""
        return (self.until - self.month).days * 2 > (next_month(self.month) - self.month).days


def bridge_of_months(
    before: MonthPart, now: MonthPart, currency: str, cells: QuerySet[ChargeCell] | None
) -> SpendBridge:
    """Return the steps from the charges of one part of a month to those of another, in ``currency``.

    ``cells`` are the cells that the viewer may see; None means all. Corrections of earlier months count in
    full. Runs at most three queries.
    """
    projects = _projects(before.month, currency, cells)
    rows = list(
        _rows_of_lines((before, now), currency)
        if cells is None
        else _rows_of_cells((before, now), currency, cells)
    )
    parts = {part: _parts_of(part.month, rows) for part in (before, now)}
    return spend_bridge(parts[before], parts[now], projects, smallest_unit(currency))


def _projects(month: date, currency: str, cells: QuerySet[ChargeCell] | None) -> set[int | None]:
    """Return the projects with a charge on any day of a month."""
    found: QuerySet[Any] = StatementLine.objects.all() if cells is None else cells
    line = "" if cells is None else "line__"
    where = {f"{line}corrected_month": None, f"{line}currency": currency, f"{line}idle_share": False}
    charged = found.filter(charged_lines(line), statement__month=month, slot_seconds__gt=0, **where)
    return set(charged.order_by().values_list(f"{line}project", flat=True).distinct())


class _Sums(NamedTuple):
    """The sums of one group. A month has thousands of groups, so a row is no dictionary."""

    month: date
    corrected: date | None
    project: int | None
    pool: int | None
    model: str
    workload_type: str
    bucket: str
    idle_share: bool
    seconds: int
    charged: Decimal


def _rows_of_lines(parts: tuple[MonthPart, MonthPart], currency: str) -> Iterator[_Sums]:
    """Yield sums by group, from statement lines and from as few of their daily sums as possible.

    For a part of more than half a month, the lines of the month count, and its last days are subtracted.
    """
    of_days, from_lines = Q(), Q(corrected_month__isnull=False, statement__month__in=[p.month for p in parts])
    for part in parts:
        in_month = Q(statement__month=part.month)
        if part.is_whole or part.is_late:
            from_lines |= in_month
        if not part.is_whole:
            of_days |= in_month & (Q(day__gte=part.until) if part.is_late else Q(day__lt=part.until))
    yield from _sums(StatementLine.objects.filter(from_lines), "", currency)
    late = {part.month for part in parts if part.is_late}
    if of_days:
        days = StatementLineDay.objects.filter(of_days, line__corrected_month=None)
        for row in _sums(days, "line__", currency):
            sign = -1 if row.month in late else 1
            yield row._replace(seconds=sign * row.seconds, charged=sign * row.charged)


def _rows_of_cells(
    parts: tuple[MonthPart, MonthPart], currency: str, cells: QuerySet[ChargeCell]
) -> Iterator[_Sums]:
    """Yield sums by group of the cells up to the last day of each part."""
    wanted = Q()
    for part in parts:
        within = Q() if part.is_whole else Q(day__lt=part.until) | Q(line__corrected_month__isnull=False)
        wanted |= Q(statement__month=part.month) & within
    yield from _sums(cells.filter(wanted), "line__", currency)


def _sums(found: QuerySet[Any], line: str, currency: str) -> Iterator[_Sums]:
    groups = found.filter(charged_lines(line), **{f"{line}currency": currency, f"{line}shared_out": False})
    keys = ("statement__month", *(f"{line}{name}" for name in ("corrected_month", *_GROUP)))
    sums = {"seconds": Sum("slot_seconds"), "charged_sum": Sum("charged_cents")}
    rows = groups.order_by().values_list(*keys).annotate(**sums)
    return map(_Sums._make, rows)


def _parts_of(month: date, rows: Iterable[_Sums]) -> list[SpendPart]:
    """Return the groups of one month. The rows of a group are added, and some of them are negative."""
    sums: dict[tuple[Any, ...], tuple[int, Decimal]] = {}
    for row in rows:
        if row.month == month:
            key = (_kind_of(row), *row[2:8])
            before = sums.get(key)
            now = (row.seconds, row.charged)
            sums[key] = now if before is None else (before[0] + now[0], before[1] + now[1])
    return [
        SpendPart(project, f"{pool}/{model}/{work}/{bucket}", model, seconds, charged, kind)
        for (kind, project, pool, model, work, bucket, _), (seconds, charged) in sums.items()
        if seconds or charged
    ]


def _kind_of(row: _Sums) -> Literal["use", "idle", "correction", "adjustment"]:
    if row.corrected is not None:
        return "correction"
    if row.bucket in ADJUSTMENT_BUCKETS:
        return "adjustment"
    return "idle" if row.idle_share else "use"
