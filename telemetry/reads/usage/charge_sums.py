"""Sum the charge lines of a period for all charts of a page, with one query."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import BigIntegerField, Case, DateTimeField, F, Q, QuerySet, Sum, Value, When

from telemetry.core.amounts import ZERO
from telemetry.models import Charge
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
    """Return for each period the sums of its lines by bucket and ``dimensions``. Runs one query.

    Of a line that crosses an edge of the period, only the part inside the period counts.
    """
    parts = [
        query
        for number, filters in enumerate(periods)
        for query in (_inside(number, filters, dimensions), _crossing(number, filters, dimensions))
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


def _inside(number: int, filters: UsageFilters, dimensions: Collection[str]) -> Any:
    """Return the sums of the lines that lie in the period."""
    is_priced = Q(price__currency=filters.currency)
    lines = filters.charges().filter(_is_whole(filters))
    return _grouped(number, lines, filters, dimensions).annotate(
        seconds_sum=Sum("slot_seconds"),
        cost_sum=filters.sum_of("cost"),
        charged_sum=filters.sum_of("charged"),
        priced_sum=Sum("slot_seconds", filter=is_priced),
        first=_NO_TIME,
        last=_NO_TIME,
    )


def _crossing(number: int, filters: UsageFilters, dimensions: Collection[str]) -> Any:
    """Return the single lines that cross an edge of the period."""
    is_priced = Q(price__currency=filters.currency)
    lines = filters.charges().exclude(_is_whole(filters))
    return _grouped(number, lines, filters, dimensions).annotate(
        seconds_sum=F("slot_seconds"),
        cost_sum=Case(When(is_priced, then=F("cost")), default=Value(ZERO)),
        charged_sum=Case(When(is_priced, then=F("charged")), default=Value(ZERO)),
        priced_sum=Case(When(is_priced, then=F("slot_seconds")), default=Value(0)),
        first=F("start"),
        last=F("end"),
    )


def _is_whole(filters: UsageFilters) -> Q:
    return Q(start__gte=filters.start, end__lte=filters.end)


_NO_TIME = Value(None, output_field=DateTimeField())


def _grouped(number: int, lines: QuerySet[Charge], filters: UsageFilters, dimensions: Collection[str]) -> Any:
    no_reservation = Value(None, output_field=BigIntegerField())
    is_reserved = Q(workload=None, reservation__isnull=False)
    marked = lines.select_related(None).annotate(
        number=Value(number),
        of_reservation=no_reservation if filters.is_long else F("reservation"),
        is_reserved=Case(When(is_reserved, then=Value(True)), default=Value(False)),
    )
    columns = [CHARGE_COLUMNS[name] for name in dimensions]
    return marked.values_list("number", "bucket", "of_reservation", "is_reserved", *columns)


def _share_inside(start: datetime, end: datetime, filters: UsageFilters) -> float:
    """Return the part of ``[start, end)`` that lies within the period, 0 to 1."""
    return (min(end, filters.end) - max(start, filters.start)) / (end - start)
