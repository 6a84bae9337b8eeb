"""Read the terms of the equation of a month."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from telemetry.core.amounts import ZERO

TermKey = Literal["charged", "adjusted", "margin", "not_sold", "overhead", "cost"]


@dataclass(frozen=True)
class EquationTerm:
    """One term in cents. ``sign`` is 1, -1, or 0 for the right side of the equation."""

    key: TermKey
    sign: Literal[1, -1, 0]
    amount: Decimal


@dataclass(frozen=True)
class PoolEquation:
    """The amounts of one pool by term, in the order of the terms of the month.

    ``pool`` is None for credits and adjustments, which belong to no pool.
    """

    pool: str | None
    amounts: tuple[Decimal, ...]


@dataclass(frozen=True)
class MonthEquation:
    """The equation of a month: the signed terms sum to the last one, the cost of the GPUs.

    ``difference`` is the left side minus the right side; 0 if it adds up. ``charged`` contains ``adjusted``,
    the sum of credits and adjustments. They belong to no GPU, so the second term subtracts them again. A
    month without them does not have this term. ``idle_shared`` is True if teams pay for idle time: their
    shares are in ``charged``, and they have no charge lines.
    """

    terms: tuple[EquationTerm, ...]
    difference: Decimal
    pools: tuple[PoolEquation, ...]
    adjusted: Decimal
    idle_shared: bool

    @property
    def holds(self) -> bool:
        """Return True if both sides are equal to the cent."""
        return self.difference == ZERO


# The terms of the pools in the order of the page, with their signs.
TERMS: tuple[tuple[TermKey, Literal[1, -1, 0]], ...] = (
    ("charged", 1),
    ("margin", -1),
    ("not_sold", 1),
    ("overhead", 1),
    ("cost", 0),
)


def month_equation(conservation: dict[str, Any], *, idle_shared: bool) -> MonthEquation:
    """Return the equation from the result of ``conservation_equation``.

    ``idle_shared`` says whether the month has shares of idle time that teams pay.
    """
    total, adjusted = conservation["total"], conservation["total"]["adjusted"]
    terms = [EquationTerm(key, sign, total[key]) for key, sign in TERMS]
    pools = [
        PoolEquation(row["pool"], tuple(_amount(row, key) for key, _ in TERMS))
        for row in conservation["pools"]
    ]
    if adjusted:
        terms, pools = _with_adjustments(terms, pools, adjusted)
    return MonthEquation(
        terms=tuple(terms),
        difference=conservation["difference"],
        pools=tuple(pools),
        adjusted=adjusted,
        idle_shared=idle_shared,
    )


def _with_adjustments(
    terms: list[EquationTerm], pools: list[PoolEquation], adjusted: Decimal
) -> tuple[list[EquationTerm], list[PoolEquation]]:
    """Add credits and adjustments to the charged amount, and subtract them in the second term."""
    charged, *others = terms
    taken_out = EquationTerm("adjusted", -1 if adjusted > 0 else 1, abs(adjusted))
    rows = [PoolEquation(row.pool, (row.amounts[0], ZERO, *row.amounts[1:])) for row in pools]
    rows.append(PoolEquation(None, (adjusted, abs(adjusted), *(ZERO for _ in others))))
    return [EquationTerm("charged", 1, charged.amount + adjusted), taken_out, *others], rows


def _amount(row: dict[str, Any], key: TermKey) -> Decimal:
    found: Decimal = row["idle"] + row["uncharged"] if key == "not_sold" else row[key]
    return found
