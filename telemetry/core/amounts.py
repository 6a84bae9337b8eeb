"""Calculate with amounts of money: round them, and split them into parts that sum exactly to the whole.

All amounts are Decimal. Ledger amounts are rounded to six decimals (``MICRO``), and statement amounts to
cents (``CENT``).

If an interval is cut into pieces, the values of the pieces sum exactly to the value of the interval. For this
purpose, ``value_between`` computes two values since the same time and returns their difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache

CENT = Decimal("0.01")
MICRO = Decimal("0.000001")
ZERO = Decimal(0)
SECONDS_PER_HOUR = 3600
HOURS_PER_MONTH = 730  # mean length of a month, for amounts "a month"

# 50 digits are precise enough for the product of a price and a century of seconds.
_EXACT = Context(prec=50, rounding=ROUND_HALF_EVEN)


def round_amount(amount: Decimal, step: Decimal = CENT) -> Decimal:
    """Return ``amount`` rounded to the nearest multiple of ``step``. Ties are rounded to the even multiple.

    Example: 0.125 rounded to cents is 0.12. All code that rounds to the nearest step calls this function.
    """
    return amount.quantize(step, rounding=ROUND_HALF_EVEN, context=_EXACT)


def round_down(amount: Decimal, step: Decimal = CENT) -> Decimal:
    """Return the largest multiple of ``step`` that is not above ``amount``."""
    return amount.quantize(step, rounding=ROUND_FLOOR, context=_EXACT)


@lru_cache(maxsize=4096)  # most GPUs of a model have the same whole days
def value_between(start: datetime, end: datetime, per_hour: Decimal, since: datetime) -> Decimal:
    """Return the value of ``[start, end)`` at the price ``per_hour``, rounded to six decimals.

    ``since`` is the time from which the price applies, at or before ``start``. The function rounds the value
    of ``[since, end)`` and the value of ``[since, start)``, and returns their difference. Therefore value(a,
    b) + value(b, c) == value(a, c) for the same ``since``.
    """
    if not since <= start <= end:
        raise ValueError(f"start: {start} is not between {since} and {end}")
    return _value_of(end - since, per_hour) - _value_of(start - since, per_hour)


def _value_of(length: timedelta, per_hour: Decimal) -> Decimal:
    micros = length // timedelta(microseconds=1)
    exact = _EXACT.divide(_EXACT.multiply(Decimal(micros), per_hour), Decimal(SECONDS_PER_HOUR * 1_000_000))
    return round_amount(exact, MICRO)


def split_amount(total: Decimal, weights: Sequence[int | Decimal], step: Decimal = CENT) -> list[Decimal]:
    """Split ``total`` in proportion to ``weights`` into multiples of ``step`` that sum to ``total``.

    Example: 0.10 split by the weights 1, 1 and 1 gives 0.04, 0.03 and 0.03. The method is the largest
    remainder. Of two parts with equal remainders, the earlier part is rounded up. ``total`` may be negative.
    If all weights are zero, the first part gets everything.

    Raises ValueError for an empty list of weights, a negative weight, or a total that is not a multiple of
    ``step``.
    """
    if not weights or min(weights) < 0:
        raise ValueError(
            f"weights: {list(weights)!r} is not a list of at least one weight, none of them negative"
        )
    exact = _EXACT.divide(abs(total), step)
    steps = int(exact)
    if exact != steps:
        raise ValueError(f"total: {total} is no multiple of {step}")
    if len(weights) == 1:
        return [total]
    numbers = _as_integers(weights)
    whole = sum(numbers)
    if whole == 0:
        return [total, *[ZERO] * (len(weights) - 1)]
    divided = [divmod(steps * number, whole) for number in numbers]
    parts = [part for part, _ in divided]
    if left := steps - sum(parts):
        remainders = [-remainder for _, remainder in divided]
        # The sort keeps the order of equal remainders.
        for index in sorted(range(len(parts)), key=remainders.__getitem__)[:left]:
            parts[index] += 1
    sign = -1 if total < 0 else 1
    return [step * (sign * part) for part in parts]


def _as_integers(weights: Sequence[int | Decimal]) -> list[int]:
    """Return integers in the same proportions as ``weights``."""
    if set(map(type, weights)) == {int}:
        return list(weights)  # type: ignore[arg-type]
    ratios = [weight.as_integer_ratio() for weight in weights]
    common = math.lcm(*(denominator for _, denominator in ratios))
    return [numerator * (common // denominator) for numerator, denominator in ratios]


def round_parts(
    amounts: Sequence[Decimal], step: Decimal = CENT, *, total: Decimal | None = None
) -> list[Decimal]:
    """Round each amount down or up to a multiple of ``step`` so that the results sum to the rounded total.

    The method is the largest remainder. Of two amounts with equal remainders, the earlier amount is rounded
    up. Amounts may have either sign. By default, the sum of ``amounts`` is rounded to the nearest step. If
    the caller has already rounded this sum (down or up to ``step``), ``total`` is the rounded sum. Returns []
    for [].
    """
    if not amounts:
        return []
    if total is None:
        total = round_amount(sum(amounts, ZERO), step)
    floors = [_floor(amount, step) for amount in amounts]
    left = int(_EXACT.divide(total - sum(floors, ZERO), step))
    by_remainder = sorted(range(len(amounts)), key=lambda index: (floors[index] - amounts[index], index))
    raised = set(by_remainder[:left])
    return [floor + step if index in raised else floor for index, floor in enumerate(floors)]


def _floor(amount: Decimal, step: Decimal) -> Decimal:
    return _EXACT.multiply(
        _EXACT.divide(amount, step).to_integral_value(rounding="ROUND_FLOOR"), step
    ).quantize(step)
