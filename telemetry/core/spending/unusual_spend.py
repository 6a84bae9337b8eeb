"""Decide which spend is unusual, so that a person should explain it.

All amounts are in cents, which are the smallest unit of the currency. Days are billing days. The rules see
charges of held time only, without corrections of earlier months.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from statistics import median

from telemetry.core.amounts import ZERO, round_amount
from telemetry.core.currencies import smallest_unit

HIGH_DAY_FACTOR = 3  # a day is high above this multiple of its usual charge
WEEKS_COMPARED = 8  # the same weekdays of this many earlier weeks count
LEAST_SAME_WEEKDAYS = 4  # with fewer charged weekdays, the usual charge is unknown
LEAST_UNITS = 5_000  # smallest units of the currency (50.00 EUR) that a finding must be about
NOT_TAKEN_SHARE = Decimal("0.25")  # share of reserved time that may stay unused
EXPLAINED_BY_NARROWER = Decimal("0.5")  # share of an excess from which narrower findings replace it

WEEK = timedelta(weeks=1)
DAY = timedelta(days=1)


@dataclass(frozen=True)
class SpendSubject:
    """The subject of a finding. From wide to narrow: a project, a person in it, the person's workloads of one
    name.

    ``user`` and ``workload_name`` are None if the subject is wider.
    """

    project: int
    user: int | None = None
    workload_name: str | None = None

    def contains(self, other: SpendSubject) -> bool:
        """Return True if ``other`` is a narrower subject within this one."""
        if self == other or self.project != other.project:
            return False
        return self.user is None or (self.workload_name is None and self.user == other.user)


@dataclass(frozen=True)
class HighDays:
    """Consecutive days ``first`` to ``last`` on each of which a subject cost far more than usual.

    ``amount`` is the charge of these days and ``usual`` the usual charge of these weekdays.
    """

    subject: SpendSubject
    first: date
    last: date
    amount: Decimal
    usual: Decimal

    @property
    def excess(self) -> Decimal:
        return self.amount - self.usual


def least_amount(currency: str) -> Decimal:
    """Return the smallest amount that a finding must be about, such as 50.00 EUR or 5,000 JPY."""
    return LEAST_UNITS * smallest_unit(currency)


def usual_charge(days: Mapping[date, Decimal], day: date, currency: str) -> Decimal | None:
    """Return the usual charge of a day: the median of the same weekdays of the weeks before.

    ``days`` has the charge of each day. Days without a charge do not count. Return None if too few count.
    """
    charged = _same_weekdays(days, day)
    if len(charged) < LEAST_SAME_WEEKDAYS:
        return None
    return round_amount(Decimal(median(charged)), smallest_unit(currency))


def _same_weekdays(days: Mapping[date, Decimal], day: date) -> list[Decimal]:
    """Return the charges above 0 on the same weekday of the weeks before a day."""
    before = (days.get(day - weeks * WEEK, ZERO) for weeks in range(1, WEEKS_COMPARED + 1))
    return [amount for amount in before if amount > 0]


def high_days(
    subject: SpendSubject, days: Mapping[date, Decimal], first: date, last: date, currency: str
) -> list[HighDays]:
    """Return the high days of a subject from ``first`` to ``last``. Consecutive days are one entry.

    A day is high under two conditions: its charge is above HIGH_DAY_FACTOR times the usual charge, and it
    exceeds the usual charge by at least ``least_amount``.
    """
    found: list[HighDays] = []
    least = least_amount(currency)
    for day in sorted(each for each in days if first <= each <= last and days[each] >= least):
        # The median is at least the minimum. Most days need no median.
        if days[day] <= HIGH_DAY_FACTOR * min(_same_weekdays(days, day), default=ZERO):
            continue
        usual = usual_charge(days, day, currency)
        if usual is None or not _is_high(days[day], usual, currency):
            continue
        if found and found[-1].last == day - DAY:
            start = found.pop()
            found.append(HighDays(subject, start.first, day, start.amount + days[day], start.usual + usual))
        else:
            found.append(HighDays(subject, day, day, days[day], usual))
    return found


def _is_high(charged: Decimal, usual: Decimal, currency: str) -> bool:
    return charged > HIGH_DAY_FACTOR * usual and charged - usual >= least_amount(currency)


def narrowest(found: Iterable[HighDays]) -> list[HighDays]:
    """Return the findings, without those that findings about narrower subjects explain.

    A finding is explained if narrower findings on its days cover at least half of its excess. If there is a
    finding about a person, findings about that person's workloads are not added to this sum.
    """
    everything = list(found)
    return [each for each in everything if _explained(each, everything) < EXPLAINED_BY_NARROWER * each.excess]


def _explained(wider: HighDays, found: Iterable[HighDays]) -> Decimal:
    within = [
        each
        for each in found
        if wider.subject.contains(each.subject) and each.first <= wider.last and each.last >= wider.first
    ]
    widest = [each for each in within if not any(other.subject.contains(each.subject) for other in within)]
    return sum((each.excess for each in widest), ZERO)


def is_not_taken(reserved_seconds: float, unused_seconds: float, charged: Decimal, currency: str) -> bool:
    """Return True if too much reserved time was not used.

    ``unused_seconds`` is the part of ``reserved_seconds`` in which nothing ran, and ``charged`` its charge.
    """
    if charged < least_amount(currency) or reserved_seconds <= 0:
        return False
    return Decimal(unused_seconds) > NOT_TAKEN_SHARE * Decimal(reserved_seconds)


def price_effect(charged: Decimal, old_price: Decimal, new_price: Decimal, currency: str) -> Decimal:
    """Return the part of a charge that is due to a new price: the charge minus its time at the old price."""
    if new_price <= 0:
        return ZERO
    return round_amount(charged * (1 - old_price / new_price), smallest_unit(currency))
