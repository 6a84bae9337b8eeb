"""Sum the charges of a period for all charts of a page, with one query.

Charge lines are summed for a short period. For a long one, the sums that the ledger keeps are read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Case, F, Q, QuerySet, Sum, Value, When

from telemetry.core.amounts import ZERO
from telemetry.models import Charge
from telemetry.reads.usage.kept_charges import (
    KEPT_COLUMNS,
    NO_RESERVATION,
    NO_TIME,
    kept_period,
    kept_sums,
    months_with_new_sums,
)
from telemetry.reads.usage_filters import UsageFilters

# dimension -> the column of charge lines
CHARGE_COLUMNS = {
    "team": "team",
    "project": "project",
    "user": "user",
    "type": "workload_type",
    "model": "model",
    "pool": "pool",
    "host": "gpu__host",
    "gpu": "gpu",
    "workload": "workload",
}
# The dimensions of the sums that all charts share. A long period is not read by workload.
LONG_DIMENSIONS = ("team", "project", "user", "type", "model", "pool")
SHARED_DIMENSIONS = (*LONG_DIMENSIONS, "workload")


class ChargeSums(NamedTuple):
    """The sums of the charge lines of one group, as far as they lie in the period.

    ``keys`` has the value of each dimension. ``reservation`` is 0 in a long period. ``is_reserved`` is True
    if a reservation and no workload held the time. ``cost`` and ``charged`` count only the currency of the
    filters. ``whole_seconds`` and ``whole_charged`` are those of the priced lines in this currency with their
    whole length, also outside the period.
    """

    bucket: str
    keys: dict[str, Any]
    reservation: int
    is_reserved: bool
    seconds: float
    cost: Decimal
    charged: Decimal
    whole_seconds: int
    whole_charged: Decimal


def shared_dimensions(filters: UsageFilters) -> tuple[str, ...]:
    """Return the dimensions that the sums of a period have, so that all charts share them."""
    return LONG_DIMENSIONS if filters.is_long else SHARED_DIMENSIONS


def charge_sums(periods: Sequence[UsageFilters], dimensions: Collection[str]) -> list[list[ChargeSums]]:
    """Return for each period the sums of its charges by bucket and ``dimensions``.

    Of a line that crosses an edge of the period, only the part inside the period counts. Runs one query, and
    one more if a period is long and the sums by ``dimensions`` are kept.
    """
    has_kept = any(filters.is_long for filters in periods) and set(dimensions) <= set(KEPT_COLUMNS)
    changed = months_with_new_sums() if has_kept else set()
    parts = []
    for number, filters in enumerate(periods):
        lines = filters.charges()
        if filters.is_long and has_kept:
            kept = kept_period(filters.start, filters.end, changed)
            parts += kept_sums(number, filters, kept, dimensions)
            lines = lines.filter(kept.edge_lines())
        parts += [
            _inside(number, lines, filters, dimensions),
            _crossing(number, lines, filters, dimensions),
        ]
    found: list[list[ChargeSums]] = [[] for _ in periods]
    try:
        sql, values = parts[0].union(*parts[1:], all=True).query.sql_with_params()
    except EmptyResultSet:  # the viewer sees no team, so no line matches
        return found
    # The rows of the cursor have the types of the columns. A query set would convert each value again.
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        for number, *row in cursor.fetchall():
            found[number].append(_sums(periods[number], dimensions, row))
    return found


def _sums(filters: UsageFilters, dimensions: Collection[str], row: list[Any]) -> ChargeSums:
    bucket, reservation, is_reserved, *found = row
    seconds, cost, charged, priced, first, last = found[-6:]
    whole_charged = charged
    if first is not None:
        share = _share_inside(first, last, filters)
        part = Decimal(str(share))
        seconds, cost, charged = float(seconds) * share, cost * part, charged * part
    return ChargeSums(
        bucket,
        dict(zip(dimensions, found[:-6], strict=True)),
        reservation or 0,
        is_reserved,
        float(seconds),
        cost,
        charged,
        int(priced or 0),
        whole_charged,
    )


def _inside(number: int, lines: QuerySet[Charge], filters: UsageFilters, dimensions: Collection[str]) -> Any:
    """Return the sums of the lines that lie in the period."""
    is_priced = Q(price__currency=filters.currency)
    return _grouped(number, lines.filter(_is_whole(filters)), filters, dimensions).annotate(
        seconds_sum=Sum("slot_seconds"),
        cost_sum=filters.sum_of("cost"),
        charged_sum=filters.sum_of("charged"),
        priced_sum=Sum("slot_seconds", filter=is_priced),
        first=NO_TIME,
        last=NO_TIME,
    )


def _crossing(
    number: int, lines: QuerySet[Charge], filters: UsageFilters, dimensions: Collection[str]
) -> Any:
    """Return the single lines that cross an edge of the period."""
    is_priced = Q(price__currency=filters.currency)
    return _grouped(number, lines.exclude(_is_whole(filters)), filters, dimensions).annotate(
        seconds_sum=F("slot_seconds"),
        cost_sum=Case(When(is_priced, then=F("cost")), default=Value(ZERO)),
        charged_sum=Case(When(is_priced, then=F("charged")), default=Value(ZERO)),
        priced_sum=Case(When(is_priced, then=F("slot_seconds")), default=Value(0)),
        first=F("start"),
        last=F("end"),
    )


def _is_whole(filters: UsageFilters) -> Q:
    return Q(start__gte=filters.start, end__lte=filters.end)


def _grouped(number: int, lines: QuerySet[Charge], filters: UsageFilters, dimensions: Collection[str]) -> Any:
    is_reserved = Q(workload=None, reservation__isnull=False)
    marked = lines.select_related(None).annotate(
        number=Value(number),
        of_reservation=NO_RESERVATION if filters.is_long else F("reservation"),
        is_reserved=Case(When(is_reserved, then=Value(True)), default=Value(False)),
    )
    columns = [CHARGE_COLUMNS[name] for name in dimensions]
    return marked.values_list("number", "bucket", "of_reservation", "is_reserved", *columns)


def _share_inside(start: datetime, end: datetime, filters: UsageFilters) -> float:
    """Return the part of ``[start, end)`` that lies within the period, 0 to 1."""
    return (min(end, filters.end) - max(start, filters.start)) / (end - start)
