"""Build the charges of a month day by day, beside the month before and the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal

from telemetry.core.amounts import ZERO, round_amount
from telemetry.core.billing_calendar import ONE_DAY, next_month, previous_month
from telemetry.core.currencies import smallest_unit
from telemetry.money.billing_months import billing_calendar
from telemetry.reads.overview.day_totals import DayTotal


@dataclass(frozen=True)
class CurveDay:
    """One day of the curve, in cents.

    - ``charged``: the charges of the day; None for a future day.
    - ``total``: the amount from the start of the month to the end of the day, or until now; None for a future
      day.
    - ``former_total``: the total of the day with the same number in the month before; None if that month has
      no such day, or has nothing in the currency of the curve.
    - ``even_pace``: the part of the budget that would be spent by the end of the day if each day cost the
      same; None without a budget.
    """

    day: date
    slot_seconds: int
    charged: Decimal | None
    total: Decimal | None
    former_total: Decimal | None
    even_pace: Decimal | None


@dataclass(frozen=True)
class SpendCurve:
    """The charges of a month day by day.

    The curve begins with the corrections of earlier months, which have no day in the month. So it ends at
    the amount of the statement. ``former_corrections`` are the corrections on the statement of
    the month before; None if the months have different currencies or the month before has no charges.
    """

    days: tuple[CurveDay, ...]
    corrections: Decimal
    former_corrections: Decimal | None

    @property
    def charged(self) -> Decimal:
        """Return the amount of the last known day: the charges of the month so far."""
        return next((day.total for day in reversed(self.days) if day.total is not None), self.corrections)


def spend_curve(
    month: date, now: datetime, rows: Sequence[DayTotal], currency: str, budget: Decimal | None
) -> SpendCurve:
    """Return the curve of ``month`` from the days of this month and of the month before.

    ``rows`` may have other months and currencies; these are ignored.
    """
    former = previous_month(month)
    mine, theirs = _rows_of(rows, month, currency), _rows_of(rows, former, currency)
    own = {row.day: row for row in mine if not row.is_correction}
    days = [month + timedelta(days=number) for number in range((next_month(month) - month).days)]
    totals = _totals(mine, days, billing_calendar().day_of(now))
    same_days = [former + timedelta(days=number) for number in range(len(days))]
    former_totals = _totals(theirs, same_days, month - ONE_DAY) if theirs else [None] * len(days)
    return SpendCurve(
        tuple(
            CurveDay(
                day,
                own[day].slot_seconds if day in own else 0,
                _charged_on(own.get(day), total),
                total,
                former_total,
                _even_pace(budget, number, len(days), currency),
            )
            for number, (day, total, former_total) in enumerate(
                zip(days, totals, former_totals, strict=True), start=1
            )
        ),
        _corrections(mine),
        _corrections(theirs) if theirs else None,
    )


def _rows_of(rows: Sequence[DayTotal], month: date, currency: str) -> list[DayTotal]:
    return [row for row in rows if row.month == month and row.currency == currency]


def _charged_on(row: DayTotal | None, total: Decimal | None) -> Decimal | None:
    """Return the charges of a day; None if ``total`` is None, because the day is in the future."""
    if total is None:
        return None
    return row.charged if row else ZERO


def _totals(rows: Sequence[DayTotal], days: Sequence[date], last: date) -> list[Decimal | None]:
    """Return the amount from the start of the month to each day; None for days after ``last``.

    ``rows`` are those of one month. The amount begins with the corrections.
    """
    charged = {row.day: row.charged for row in rows if not row.is_correction}
    total, totals = _corrections(rows), []
    for day in days:
        total += charged.get(day, ZERO)
        totals.append(total if day <= last else None)
    return totals


def _corrections(rows: Sequence[DayTotal]) -> Decimal:
    return sum((row.charged for row in rows if row.is_correction), ZERO)


def _even_pace(budget: Decimal | None, days: int, length: int, currency: str) -> Decimal | None:
    return None if budget is None else round_amount(budget * days / length, smallest_unit(currency))
