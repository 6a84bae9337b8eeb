"""Read the rate card: cost and price of a GPU-hour by pool, model and date."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime

from telemetry.core.charge_model import Rate
from telemetry.models import Price


class RateCard:
    """What GPUs cost and are charged from which moment on. A pool's own price stands before the one for every pool."""

    def __init__(self, prices: Iterable[Price]) -> None:
        """``prices`` in order of time."""
        self._own: dict[tuple[int | None, str], list[Price]] = defaultdict(list)
        for price in prices:
            self._own[price.pool_id, price.model].append(price)

    def rates(self, pool: int | None, model: str) -> tuple[Rate, ...]:
        """The lines for a model of a pool (None: of pools without lines of their own), in order of time."""
        general = self._own.get((None, model), [])
        special = self._own.get((pool, model), []) if pool is not None else []
        first_special = special[0].valid_from if special else None
        before = [price for price in general if first_special is None or price.valid_from < first_special]
        return tuple(
            Rate(price.valid_from, price.cost_per_gpu_hour, price.price_per_gpu_hour, price.pk)
            for price in (*before, *special)
        )

    def at(self, pool: int | None, model: str, now: datetime) -> Rate | None:
        """The line in force at a moment; None before the first."""
        return next((rate for rate in reversed(self.rates(pool, model)) if rate.since <= now), None)


def load_rate_card(models: Collection[str] | None = None) -> RateCard:
    """The rate card of these models (None: all), in one query."""
    prices = Price.objects.order_by("valid_from", "id")
    return RateCard(prices if models is None else prices.filter(model__in=models))


def load_rates(wanted: Collection[tuple[int, str]]) -> dict[tuple[int, str], tuple[Rate, ...]]:
    """The rate card of each (pool id, model), in order of time."""
    card = load_rate_card({model for _, model in wanted})
    return {(pool, model): card.rates(pool, model) for pool, model in wanted}
