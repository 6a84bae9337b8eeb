"""Select the sums of charges that the ledger keeps, for periods that are too long for charge lines.

A long period has three parts: whole billing months are read from the sums of people per statement line, whole
billing days of the other months from the cells, and the rest of a day at each edge from charge lines.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.db.models import (
    BigIntegerField,
    Case,
    DateTimeField,
    DecimalField,
    F,
    Q,
    QuerySet,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Cast, Coalesce

from telemetry.core.amounts import ZERO
from telemetry.core.billing_calendar import ONE_DAY, next_month
from telemetry.core.charge_model import ADJUSTMENT_BUCKETS
from telemetry.models import ChargeCell, StatementLine, StatementLinePerson
from telemetry.money.billing_months import billing_calendar
from telemetry.reads.usage_filters import UsageFilters

# dimension -> the column of cells and of the people of a statement line
KEPT_COLUMNS = {
    "team": "line__team",
    "project": "line__project",
    "user": "user",
    "type": "line__workload_type",
    "model": "line__model",
    "pool": "line__pool",
}
USE_MONTH = Coalesce("line__corrected_month", "line__statement__month")
_AMOUNT = DecimalField(max_digits=18, decimal_places=6)
# PostgreSQL needs the types, because the parts of a UNION are matched in pairs.
NO_TIME = Cast(Value(None), DateTimeField())
NO_RESERVATION = Cast(Value(None), BigIntegerField())


@dataclass(frozen=True)
class KeptPeriod:
    """The parts of a period: whole months, ranges of whole days (first day, day after the last), and edges.

    The days and months are those of the use. ``edges`` are read from charge lines.
    """

    months: list[date]
    days: list[tuple[date, date]]
    edges: list[tuple[datetime, datetime]]

    def edge_lines(self) -> Q:
        """Return the condition that selects the charge lines of the edges. No line is longer than its day."""
        found = Q(pk=None)
        for start, end in self.edges:
            found |= Q(start__lt=end, end__gt=start)
        return found


def months_with_new_sums() -> set[date]:
    """Return the months of use whose sums by person are not final, because a changed line has no cents yet.

    Months that version 0.1 closed are included if a line has no pool: it merges charges of several pools.
    """
    changed = Q(due=True) | Q(pool=None) & ~Q(bucket__in=ADJUSTMENT_BUCKETS)
    month = Coalesce("corrected_month", "statement__month")
    lines = StatementLine.objects.filter(changed, idle_share=False).order_by()
    return set(lines.values_list(month, flat=True).distinct())


def kept_period(start: datetime, end: datetime, changed: Collection[date]) -> KeptPeriod:
    """Divide a period into its parts. ``changed`` are months that are read by day."""
    calendar = billing_calendar()
    first, last = calendar.day_of(start), calendar.day_of(end)
    edges = []
    if calendar.day_bounds(first)[0] < start:
        edges.append((start, min(end, calendar.day_bounds(first)[1])))
        first += ONE_DAY
    if first <= last and (low := calendar.day_bounds(last)[0]) < end:
        edges.append((low, end))
    months: list[date] = []
    days: list[tuple[date, date]] = []
    while first < last:
        following = min(next_month(first), last)
        is_whole = first.day == 1 and following.day == 1
        if is_whole and first not in changed:
            months.append(first)
        else:
            days.append((first, following))
        first = following
    return KeptPeriod(months, days, edges)


def kept_sums(
    number: int, filters: UsageFilters, period: KeptPeriod, dimensions: Collection[str]
) -> list[QuerySet[Any, Any]]:
    """Return the queries of the months and of the days of a period, with the columns of ``charge_sums``."""
    found: list[QuerySet[Any, Any]] = []
    if period.months:
        people = StatementLinePerson.objects.annotate(use_month=USE_MONTH).filter(use_month__in=period.months)
        # The line of idle time that teams pay has no cents itself, and one row, because nobody held the time.
        cost = Case(
            When(line__shared_out=True, then=F("line__cost")), default=F("cost_cents"), output_field=_AMOUNT
        )
        found.append(_grouped(number, people, filters, dimensions, cost, F("charged_cents")))
    if period.days:
        of_days = Q(pk=None)
        for first, following in period.days:
            month = first.replace(day=1)
            of_days |= Q(use_month=month, day__gte=first, day__lt=following)
        cells = ChargeCell.objects.annotate(use_month=USE_MONTH).filter(of_days)
        found.append(_grouped(number, cells, filters, dimensions, F("cost"), F("charged")))
    return found


def _grouped(
    number: int,
    rows: QuerySet[Any],
    filters: UsageFilters,
    dimensions: Collection[str],
    cost: Any,
    charged: Any,
) -> QuerySet[Any, Any]:
    wanted = {
        "line__pool": filters.pool,
        "line__team": filters.team,
        "line__project": filters.project,
        "user": filters.user,
        "line__model": filters.model or None,
        "line__workload_type": filters.type or None,
    }
    rows = rows.filter(**{name: value for name, value in wanted.items() if value is not None})
    rows = rows.filter(line__idle_share=False).exclude(line__bucket__in=ADJUSTMENT_BUCKETS)
    if filters.teams is not None or filters.users is not None:
        rows = rows.filter(Q(line__team__in=filters.teams or ()) | Q(user__in=filters.users or ()))
    is_priced = Q(line__currency=filters.currency)
    has_price = is_priced & ~Q(line__cost=0)
    is_reserved = Q(line__bucket="reserved_unused", line__project__isnull=False)
    marked = rows.order_by().annotate(
        number=Value(number),
        of_reservation=NO_RESERVATION,
        is_reserved=Case(When(is_reserved, then=Value(True)), default=Value(False)),
    )
    columns = [KEPT_COLUMNS[name] for name in dimensions]
    sums: QuerySet[Any, Any] = marked.values_list(
        "number", "line__bucket", "of_reservation", "is_reserved", *columns
    ).annotate(
        seconds_sum=Sum("slot_seconds"),
        cost_sum=Coalesce(Sum(cost, filter=is_priced, output_field=_AMOUNT), ZERO, output_field=_AMOUNT),
        charged_sum=Coalesce(
            Sum(charged, filter=is_priced, output_field=_AMOUNT), ZERO, output_field=_AMOUNT
        ),
        priced_sum=Sum("slot_seconds", filter=has_price),
        first=NO_TIME,
        last=NO_TIME,
    )
    return sums
