"""Read the charges of each day of some months, over all projects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from django.db.models import QuerySet

from telemetry.core.amounts import ZERO
from telemetry.models import ChargeCell, StatementDay
from telemetry.reads.daily_spend import daily_spend


@dataclass(frozen=True)
class DayTotal:
    """The charges of one day on the statement of ``month``, in cents of ``currency``.

    A correction of an earlier month has a ``day`` outside ``month``. ``slot_seconds`` are those of held and
    of reserved time.
    """

    month: date
    day: date
    currency: str
    slot_seconds: int
    charged: Decimal

    @property
    def is_correction(self) -> bool:
        """Return True if the row corrects an earlier month."""
        return self.day.replace(day=1) != self.month


def day_totals(months: Collection[date], cells: QuerySet[ChargeCell] | None) -> list[DayTotal]:
    """Return the charges of each day of months, oldest first. Runs one query.

    ``cells`` are the cells that the viewer may see; None means all.
    """
    if cells is None:
        rows = StatementDay.objects.filter(statement__month__in=months).order_by("statement__month", "day")
        columns = ("statement__month", "day", "currency", "slot_seconds", "charged_cents")
        return [DayTotal(*row) for row in rows.values_list(*columns)]
    sums: dict[tuple[date, date, str], tuple[int, Decimal]] = defaultdict(lambda: (0, ZERO))
    for row in daily_spend(months, cells):
        seconds, charged = sums[row.month, row.day, row.currency]
        sums[row.month, row.day, row.currency] = (seconds + row.slot_seconds, charged + row.charged)
    return [DayTotal(*key, *sums[key]) for key in sorted(sums)]
