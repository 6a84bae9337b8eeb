"""Money: Decimal only, rounded in one place, and parts that always sum to the whole.

Ledger amounts have six decimals (``MICRO``), statements two (``CENT``). The value of time is a difference of two points on
one line (``value_between``), so however a stretch is cut, its pieces add up to the stretch exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, Context, Decimal

CENT = Decimal("0.01")
MICRO = Decimal("0.000001")
ZERO = Decimal(0)
SECONDS_PER_HOUR = 3600

# Wide enough that no product of a price and a century of seconds is cut before it is rounded.
_EXACT = Context(prec=50, rounding=ROUND_HALF_EVEN)


def round_amount(amount: Decimal, step: Decimal = CENT) -> Decimal:
    """``amount`` to the nearest ``step``, half to even. The only place where money is rounded to the nearest."""
    return amount.quantize(step, rounding=ROUND_HALF_EVEN, context=_EXACT)


def value_between(start: datetime, end: datetime, per_hour: Decimal, since: datetime) -> Decimal:
    """What ``[start, end)`` is worth at ``per_hour``, to the micro. ``since`` is when the price began, not after ``start``.

    Both ends are rounded as points counted from ``since``: value(a, b) + value(b, c) == value(a, c), always.
    """
    if not since <= start <= end:
        raise ValueError(f"start: {start} is not between {since} and {end}")
    return _value_of(end - since, per_hour) - _value_of(start - since, per_hour)


def _value_of(length: timedelta, per_hour: Decimal) -> Decimal:
    micros = length // timedelta(microseconds=1)
    exact = _EXACT.divide(_EXACT.multiply(Decimal(micros), per_hour), Decimal(SECONDS_PER_HOUR * 1_000_000))
    return round_amount(exact, MICRO)


def split_amount(total: Decimal, weights: Sequence[int | Decimal], step: Decimal = CENT) -> list[Decimal]:
    """``total`` in parts as ``weights``, each a multiple of ``step``; they sum to ``total`` exactly (largest remainder).

    ``total`` is a multiple of ``step``, positive, zero or negative; weights are not negative. Equal remainders go to the
    earlier part. All weights zero: the first part takes all. Raises ValueError for no parts, a negative weight, or a total
    that is no multiple of ``step``.
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
    """``amounts`` each rounded down or up to a multiple of ``step`` so that they sum to their rounded total.

    ``total``: what they are said to sum to, where that was rounded elsewhere: their sum rounded down or up to ``step``.
    Largest remainder; amounts of either sign; equal remainders go to the earlier part. [] stays [].
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
    """``amounts`` rounded as ``round_parts`` does, and then to sum to ``total``, a multiple of ``step`` that is near their sum
    and was rounded elsewhere. What that leaves over goes to the largest of them, where it is least seen; the first of equals.
    At least one.
    """
    parts = round_parts(amounts, step)
    largest = max(range(len(amounts)), key=lambda index: (abs(amounts[index]), -index))
    parts[largest] += total - sum(parts, ZERO)
    return parts


def _floor(amount: Decimal, step: Decimal) -> Decimal:
    return _EXACT.multiply(
        _EXACT.divide(amount, step).to_integral_value(rounding="ROUND_FLOOR"), step
    ).quantize(step)
