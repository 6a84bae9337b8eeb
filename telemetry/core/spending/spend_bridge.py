"""Explain the difference between the charges of two periods: price, hours, mix, new projects, corrections.

The method is the price-volume-mix analysis of cost accounting. It compares groups of charged time that should
have one price: the time of one project with the same pool, model, workload type and bucket.

1. New projects: the charges of projects that had no charge before.
2. Shared idle time: the difference of the idle time that teams pay. This time is not the use of a project.
3. Corrections: the difference of the corrections of earlier months. Adjustments: the difference of the
   credits and the manual adjustments.
4. Price: for each other group that was charged in both periods, the new hours x the difference of its mean
   prices.
5. Hours: the change of the total hours of the other groups x the mean price of these hours before.
6. Mix: the rest. It is not zero if the hours of cheap and of expensive groups grew by different rates.

Amounts are Decimal in cents. Price and hours are rounded to cents, and mix is the rest, so the steps sum
exactly to the difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NamedTuple

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.amounts import ZERO, round_amount

StepKind = Literal["price", "hours", "mix", "new", "idle", "corrections", "adjustments"]
STEP_KINDS: tuple[StepKind, ...] = ("price", "hours", "mix", "new", "idle", "corrections", "adjustments")


class SpendPart(NamedTuple):
    """The charges of one group in one period, in cents.

    ``project`` is None for the unused time of a dedicated pool. ``group`` names the time that should have one
    price; ``model`` is its GPU model. ``kind`` is "use" for charged time, "idle" for shared idle time,
    "correction" for a correction of an earlier month, and "adjustment" for credits and manual adjustments;
    only "use" needs slot-seconds.
    """

    project: int | None
    group: str
    model: str
    slot_seconds: int
    charged: Decimal
    kind: Literal["use", "idle", "correction", "adjustment"] = "use"


@dataclass(frozen=True)
class BridgeStep:
    """One step from the charges before to the charges now, in cents.

    ``model`` is the GPU model with the largest part of a price or mix step; "" for other steps.
    ``price_before`` and ``price_now`` are the mean prices of one GPU-hour of this model, rounded to cents.
    ``slot_seconds`` is the change of charged time of an hours step. ``projects`` are the new projects, the
    highest charge first.
    """

    kind: StepKind
    amount: Decimal
    model: str = ""
    price_before: Decimal | None = None
    price_now: Decimal | None = None
    slot_seconds: int = 0
    projects: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class SpendBridge:
    """The steps from ``before`` to ``now``. ``before`` plus the amounts of the steps equals ``now``."""

    before: Decimal
    now: Decimal
    steps: tuple[BridgeStep, ...]


def spend_bridge(
    before: Sequence[SpendPart],
    now: Sequence[SpendPart],
    known_projects: Iterable[int | None],
    unit: Decimal,
) -> SpendBridge:
    """Return the steps from the charges ``before`` to those of ``now``.

    ``known_projects`` are the projects that were charged before, also on days that are not compared. ``unit``
    is the smallest unit of the currency. Steps without an amount are left out.
    """
    known = set(known_projects)
    old = _Use(part for part in before if part.kind == "use")
    kept = _Use(part for part in now if part.kind == "use" and part.project in known)
    new = [part for part in now if part.kind == "use" and part.project not in known]
    change = kept.charged - old.charged
    prices = _price_effects(old, kept)
    price = round_amount(sum(prices.values(), ZERO), unit)
    hours = round_amount((kept.slot_seconds - old.slot_seconds) * (old.price or kept.price), unit)
    steps = (
        _price_step(price, prices, old, kept, unit),
        BridgeStep("hours", hours, slot_seconds=kept.slot_seconds - old.slot_seconds),
        BridgeStep("mix", change - price - hours, model=_grown_model(old, kept)),
        BridgeStep("new", _charged(new), projects=_by_charge(new)),
        BridgeStep("idle", _change_of_kind("idle", before, now)),
        BridgeStep("corrections", _change_of_kind("correction", before, now)),
        BridgeStep("adjustments", _change_of_kind("adjustment", before, now)),
    )
    return SpendBridge(_charged(before), _charged(now), tuple(step for step in steps if step.amount))


class _Use:
    """The charged time of one period: its totals, and its sums by group and by model."""

    def __init__(self, parts: Iterable[SpendPart]) -> None:
        self.groups: dict[tuple[int | None, str], SpendPart] = {}
        self.by_model: dict[str, tuple[int, Decimal]] = defaultdict(lambda: (0, ZERO))
        self.slot_seconds, self.charged = 0, ZERO
        for part in parts:
            key = (part.project, part.group)
            assert key not in self.groups, f"{key} is given twice"
            self.groups[key] = part
            seconds, charged = self.by_model[part.model]
            self.by_model[part.model] = (seconds + part.slot_seconds, charged + part.charged)
            self.slot_seconds += part.slot_seconds
            self.charged += part.charged

    @property
    def price(self) -> Decimal:
        """Return the mean price of a slot-second; 0 without charged time."""
        return _price(self.slot_seconds, self.charged)

    def model_price(self, model: str) -> Decimal:
        return _price(*self.by_model[model])


def _price(slot_seconds: int, charged: Decimal) -> Decimal:
    return charged / slot_seconds if slot_seconds > 0 else ZERO


def _price_effects(old: _Use, kept: _Use) -> dict[str, Decimal]:
    """Return the effect of changed prices by model. Only groups that were charged in both periods count."""
    effects: dict[str, Decimal] = defaultdict(Decimal)
    for key, part in kept.groups.items():
        former = old.groups.get(key)
        if former is not None and former.slot_seconds > 0 and part.slot_seconds > 0:
            price = _price(former.slot_seconds, former.charged)
            effects[part.model] += part.charged - part.slot_seconds * price
    return effects


def _price_step(
    amount: Decimal, effects: dict[str, Decimal], old: _Use, kept: _Use, unit: Decimal
) -> BridgeStep:
    if not any(effects.values()):
        return BridgeStep("price", amount)
    model = max(effects, key=lambda name: (abs(effects[name]), name))
    before, now = (
        round_amount(use.model_price(model) * SLOT_SECONDS_PER_GPU_HOUR, unit) for use in (old, kept)
    )
    return BridgeStep("price", amount, model, before, now)


def _grown_model(old: _Use, kept: _Use) -> str:
    """Return the model whose part of the charged time grew most; "" if one of the periods has no charged
    time.
    """
    if old.slot_seconds <= 0 or kept.slot_seconds <= 0:
        return ""

    def growth(model: str) -> float:
        return kept.by_model[model][0] / kept.slot_seconds - old.by_model[model][0] / old.slot_seconds

    return max(sorted({*old.by_model, *kept.by_model}), key=growth, default="")


def _by_charge(parts: Iterable[SpendPart]) -> tuple[int | None, ...]:
    sums: dict[int | None, Decimal] = defaultdict(Decimal)
    for part in parts:
        sums[part.project] += part.charged
    return tuple(sorted(sums, key=lambda project: (-sums[project], project or 0)))


def _charged(parts: Iterable[SpendPart]) -> Decimal:
    return sum((part.charged for part in parts), ZERO)


def _change_of_kind(kind: str, before: Sequence[SpendPart], now: Sequence[SpendPart]) -> Decimal:
    return _charged(part for part in now if part.kind == kind) - _charged(
        part for part in before if part.kind == kind
    )
