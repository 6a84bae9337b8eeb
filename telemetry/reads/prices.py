"""Return the prices in force."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.money.rate_card import RateCard, load_rate_card


class CurrentPrices:
    """The prices in force at one time. Charges use the same rate card."""

    def __init__(self, card: RateCard, now: datetime) -> None:
        self._card, self._now = card, now
        self._known: dict[tuple[int, str], Decimal | None] = {}

    def of(self, pool: int, model: str, slots: int = SLOTS_PER_GPU) -> Decimal | None:
        """Return the price of one hour of ``slots`` slots (of 840) of a model in a pool.

        Returns None if the model has no price.
        """
        if (pool, model) not in self._known:
            rate = self._card.at(pool, model, self._now)
            self._known[pool, model] = None if rate is None else rate.price
        price = self._known[pool, model]
        return None if price is None else price * slots / SLOTS_PER_GPU

    def line(self, pool: int | None, model: str) -> int | None:
        """Return the id of the price in force; None before the first price.

        If ``pool`` is None, return the id of the price for pools without own prices.
        """
        rate = self._card.at(pool, model, self._now)
        return None if rate is None else rate.id


def load_current_prices(now: datetime) -> CurrentPrices:
    """Return the prices in force. Runs one query."""
    return CurrentPrices(load_rate_card(), now)
