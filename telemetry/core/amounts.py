"""Calculate amounts of money: round them, and split them into parts that sum exactly to the whole.

Ledger amounts have six decimals (``MICRO``), statement amounts two (``CENT``). All amounts are Decimal. The
value of an interval is the difference of two rounded values, both counted from the same time
(``value_between``). The values of the pieces of an interval therefore always sum to the value of the
interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, Context, Decimal

CENT = Decimal("0.01")
MICRO = Decimal("0.000001")
ZERO = Decimal(0)
SECONDS_PER_HOUR = 3600

# 50 digits are precise enough for the product of a price and a century of seconds.
_EXACT = Context(prec=50, rounding=ROUND_HALF_EVEN)


def round_amount(amount: Decimal, step: Decimal = CENT) -> Decimal:
    """Return ``amount`` rounded to the nearest ``step``, half to even.

    All code that rounds to the nearest step calls this function.
    """
    return amount.quantize(step, rounding=ROUND_HALF_EVEN, context=_EXACT)


def value_between(start: datetime, end: datetime, per_hour: Decimal, since: datetime) -> Decimal:
    """Return the value of ``[start, end)`` at the price ``per_hour``, rounded to six decimals.

    ``since`` is the time at which the price began, at or before ``start``. The values from ``since`` to
    ``start`` and to ``end`` are rounded, and the result is their difference. Therefore value(a, b) + value(b,
    c) == value(a, c).
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

    The method is the largest remainder. ``total`` is a multiple of ``step`` and may be negative; weights are
    not negative. Of two parts with equal remainders, the earlier part is rounded up. If all weights are zero,
    the first part gets everything. Raises ValueError for no weights, a negative weight, or a total that is
    not a multiple of ``step``.
    """
    if not weights or any(weight < 0 for weight in weights):
        raise ValueError(
            f"weights: {list(weights)!r} is not a list of at least one weight, none of them negative"
        )
    steps = _EXACT.divide(abs(total), step)
    if steps != steps.to_integral_value():
        raise ValueError(f"total: {total} is no multiple of {step}")
    whole = sum((Decimal(weight) for weight in weights), ZERO)
    if whole == 0:
        return [total, *[ZERO] * (len(weights) - 1)]
    shares = [_EXACT.divide(_EXACT.multiply(steps, Decimal(weight)), whole) for weight in weights]
    parts = [share.to_integral_value(rounding=ROUND_DOWN) for share in shares]
    left = int(steps - sum(parts, ZERO))
    by_remainder = sorted(range(len(parts)), key=lambda index: (parts[index] - shares[index], index))
    for index in by_remainder[:left]:
        parts[index] += 1
    sign = -1 if total < 0 else 1
    return [sign * part * step for part in parts]


def round_parts(
    amounts: Sequence[Decimal], step: Decimal = CENT, *, total: Decimal | None = None
) -> list[Decimal]:
    """Round each amount down or up to a multiple of ``step`` so that the results sum to the rounded total.

    Pass ``total`` if the caller has already rounded the sum of ``amounts``, down or up to ``step``. The
    method is the largest remainder. Amounts may have either sign. Of two amounts with equal remainders, the
    earlier amount is rounded up. Returns [] for [].
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


def round_parts_to_total(amounts: Sequence[Decimal], total: Decimal, step: Decimal = CENT) -> list[Decimal]:
    """Round ``amounts`` like ``round_parts``, then adjust the largest result so that they sum to ``total``.

    ``total`` is a multiple of ``step`` close to the sum. The largest amount takes the difference, because the
    difference is least visible there. Of equal amounts the first is adjusted. ``amounts`` has at least one
    element.
    """
    parts = round_parts(amounts, step)
    largest = max(range(len(amounts)), key=lambda index: (abs(amounts[index]), -index))
    parts[largest] += total - sum(parts, ZERO)
    return parts


def _floor(amount: Decimal, step: Decimal) -> Decimal:
    return _EXACT.multiply(
        _EXACT.divide(amount, step).to_integral_value(rounding="ROUND_FLOOR"), step
    ).quantize(step)
