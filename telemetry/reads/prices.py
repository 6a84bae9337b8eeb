"""Return the prices in force."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.money.billing_months import month_of
from telemetry.money.pricing.billing_currencies import load_billing_currencies
from telemetry.money.pricing.price_factors import NO_FACTOR, PriceFactors, load_price_factors
from telemetry.money.rate_card import RateCard, load_rate_card


class CurrentPrices:
    """The prices and price factors that charges use at one time. ``currency`` is the prices' currency."""

    def __init__(self, card: RateCard, factors: PriceFactors, currency: str, now: datetime) -> None:
        self._card, self._factors, self._now = card, factors, now
        self.currency = currency
        self._known: dict[tuple[int, str], Decimal | None] = {}

    def of(self, pool: int, model: str, slots: int = SLOTS_PER_GPU) -> Decimal | None:
        """Return the price per hour of a part of a GPU: ``slots`` of its 840 slots.

        Returns None if the model has no price.
        """
        if (pool, model) not in self._known:
            rate = self._card.at(pool, model, self._now)
            self._known[pool, model] = None if rate is None else rate.price
        price = self._known[pool, model]
        return None if price is None else price * slots / SLOTS_PER_GPU

    def of_work(
        self,
        pool: int,
        model: str,
        work: tuple[int, str],
        slots: int = SLOTS_PER_GPU,
        *,
        in_reservation: bool = False,
    ) -> Decimal | None:
        """Return the price per hour of ``slots`` slots for work, with the price factors of the work.

        ``work`` is the priority and the workload type. Work in a reservation has no factor. Returns None if
        the model has no price.
        """
        rate = self._card.at(pool, model, self._now)
        if rate is None:
            return None
        factor = NO_FACTOR if in_reservation else self.factor(pool, work)
        return rate.price_with(factor) * slots / SLOTS_PER_GPU

    def factor(self, pool: int, work: tuple[int, str]) -> Decimal:
        """Return the factor on the price of work outside of reservations; 1 if there is no factor."""
        return self._factors.at(pool, *work, self._now)

    def line(self, pool: int | None, model: str) -> int | None:
        """Return the id of the price in force; None before the first price.

        If ``pool`` is None, return the id of the price for pools without own prices.
        """
        rate = self._card.at(pool, model, self._now)
        return None if rate is None else rate.id


def load_current_prices(now: datetime) -> CurrentPrices:
    """Return the prices in force. Runs three queries."""
    currency = load_billing_currencies().of(month_of(now))
    return CurrentPrices(load_rate_card(), load_price_factors(), currency, now)
