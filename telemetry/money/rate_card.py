"""Read the rate card: the cost and the price of a GPU-hour by pool, model and date."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime

from telemetry.core.charge_model import Rate
from telemetry.models import Price


class RateCard:
    """The cost and the price of GPU models over time.

    If a pool has its own prices for a model, they replace the prices for all pools, from the date of the
    pool's first own price.
    """

    def __init__(self, prices: Iterable[Price]) -> None:
        """Build the card from ``prices`` in order of time."""
        self._own: dict[tuple[int | None, str], list[Price]] = defaultdict(list)
        for price in prices:
            self._own[price.pool_id, price.model].append(price)

    def rates(self, pool: int | None, model: str) -> tuple[Rate, ...]:
        """Return the rates of a model in a pool, in order of time.

        If ``pool`` is None, return the rates for pools without own prices.
        """
        general = self._own.get((None, model), [])
        special = self._own.get((pool, model), []) if pool is not None else []
        first_special = special[0].valid_from if special else None
        before = [price for price in general if first_special is None or price.valid_from < first_special]
        return tuple(
            Rate(price.valid_from, price.cost_per_gpu_hour, price.price_per_gpu_hour, price.pk)
            for price in (*before, *special)
        )

    def at(self, pool: int | None, model: str, now: datetime) -> Rate | None:
        """Return the rate in force at ``now``; None before the first rate."""
        return next((rate for rate in reversed(self.rates(pool, model)) if rate.since <= now), None)


def load_rate_card(models: Collection[str] | None = None) -> RateCard:
    """Return the rate card of these models; None means all models. Runs one query."""
    prices = Price.objects.order_by("valid_from", "id")
    return RateCard(prices if models is None else prices.filter(model__in=models))


def load_rates(wanted: Collection[tuple[int, str]]) -> dict[tuple[int, str], tuple[Rate, ...]]:
    """Return the rates of each (pool id, model), in order of time. Runs one query."""
    card = load_rate_card({model for _, model in wanted})
    return {(pool, model): card.rates(pool, model) for pool, model in wanted}
