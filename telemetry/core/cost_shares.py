"""Split time and amounts among the cost centres that share them, by largest remainder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from telemetry.core.amounts import MICRO, split_amount

WHOLE_PERCENT = Decimal(100)
SLOT_SECOND = Decimal(1)


@dataclass(frozen=True, slots=True, order=True)
class CostShare:
    """The ``percent`` (more than 0, up to 100) that the cost centre with this ``code`` pays."""

    code: str
    percent: Decimal


CostSplit = tuple[CostShare, ...]  # in order of code; the percents sum to 100
UNMAPPED: CostSplit = (CostShare("", WHOLE_PERCENT),)


@dataclass(frozen=True, slots=True)
class SplitPart:
    """The part of a piece's slot-seconds, cost and charge that one cost centre pays."""

    share: CostShare
    slot_seconds: int
    cost: Decimal
    charged: Decimal


def cost_split(shares: Sequence[CostShare]) -> CostSplit:
    """Return the shares in order of code. Raises ValueError if they do not sum to 100 %."""
    total = sum((share.percent for share in shares), Decimal(0))
    if total != WHOLE_PERCENT:
        raise ValueError(f"shares: {total} %; allowed: exactly 100 %")
    return tuple(sorted(shares))


def split_text(split: CostSplit, labels: Mapping[str, str] | None = None) -> str:
    """Return a split as text, such as ``CC-1 60 %, CC-2 40 %``; no percent if one cost centre pays all.

    ``labels`` are the names to show instead of codes, by code.
    """
    names = labels or {}
    if len(split) == 1:
        return names.get(split[0].code, split[0].code)
    return ", ".join(f"{names.get(share.code, share.code)} {percent_text(share.percent)}" for share in split)


def percent_text(percent: Decimal) -> str:
    """Return a percent without zeros at its end, such as ``33.3 %``."""
    return f"{percent.normalize():f} %"


def split_parts(slot_seconds: int, cost: Decimal, charged: Decimal, split: CostSplit) -> list[SplitPart]:
    """Return the part of each cost centre. Slot-seconds, costs and charges sum exactly to the whole.

    Each of these three values is split separately, by largest remainder. If two remainders are equal, the
    cost centre with the lower code gets the larger part.
    """
    if len(split) == 1:
        return [SplitPart(split[0], slot_seconds, cost, charged)]
    weights = [share.percent for share in split]
    parts = zip(
        split,
        split_amount(Decimal(slot_seconds), weights, SLOT_SECOND),
        split_amount(cost, weights, MICRO),
        split_amount(charged, weights, MICRO),
        strict=True,
    )
    return [SplitPart(share, int(seconds), own_cost, own) for share, seconds, own_cost, own in parts]
