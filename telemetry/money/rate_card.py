"""Read the rate card: the cost and the price of a GPU-hour by pool, model and date."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from django.db.models import F, OuterRef, Q, QuerySet, Subquery

from telemetry.core.amounts import ZERO
from telemetry.core.charge_model import Rate
from telemetry.models import BillingCurrency, Price

NEVER = datetime.max.replace(tzinfo=UTC)


class RateCard:
    """The cost and the price of GPU models over time.

    Prices are general or belong to one pool. From the start of a pool's first own price for a model, the
    general prices for this model do not apply in the pool. This rule holds for each currency separately.
    After a change of the currency, a price applies only if it is in the new currency and begins at the change
    or later.
    """

    def __init__(self, prices: Iterable[Price]) -> None:
        """Build the card from ``prices`` in order of time, as ``_prices_in_their_currency`` returns them."""
        self._own: dict[tuple[int | None, str], list[Price]] = defaultdict(list)
        for price in prices:
            self._own[price.pool_id, price.model].append(price)

    def rates(self, pool: int | None, model: str) -> tuple[Rate, ...]:
        """Return the rates of a model in a pool, in order of time.

        If ``pool`` is None, return the rates for pools without own prices. If a currency begins before its
        first price, the time between them has a rate of zero without an id. This rate marks time without a
        price.
        """
        general = self._own.get((None, model), [])
        special = self._own.get((pool, model), []) if pool is not None else []
        rates: list[Rate] = []
        # Group the prices by currency: all prices of one currency end when the next currency begins.
        ends = sorted({_currency_end(price) for price in (*general, *special)})
        for end in ends:
            of_currency = _own_before_general(
                [price for price in general if _currency_end(price) == end],
                [price for price in special if _currency_end(price) == end],
            )
            if rates and rates[-1].since == of_currency[0].valid_from:
                rates.pop()
            rates += [
                Rate(price.valid_from, price.cost_per_gpu_hour, price.price_per_gpu_hour, price.pk)
                for price in of_currency
            ]
            if end != NEVER:
                rates.append(Rate(end, ZERO, ZERO))
        return tuple(rates)

    def at(self, pool: int | None, model: str, now: datetime) -> Rate | None:
        """Return the rate in force at ``now``; None if there is no price at this time."""
        rate = next((rate for rate in reversed(self.rates(pool, model)) if rate.since <= now), None)
        return None if rate is None or rate.id is None else rate


def _own_before_general(general: list[Price], special: list[Price]) -> list[Price]:
    """Return the prices in force: general prices before the pool's first own price, then its own prices."""
    first_special = special[0].valid_from if special else None
    before = [price for price in general if first_special is None or price.valid_from < first_special]
    return [*before, *special]


def _currency_end(price: Price) -> datetime:
    """Return the time at which the currency of a price ends; NEVER if no other currency is planned."""
    end: datetime | None = price.currency_end  # type: ignore[attr-defined]
    return end or NEVER


def _prices_in_their_currency() -> QuerySet[Price]:
    """Return the prices whose currency was in force when they began, in order of time.

    Prices that began before the first currency are included. ``currency_end`` is the time of the next change
    of the currency; None if there is none.
    """
    changes = BillingCurrency.objects
    at_start = changes.filter(valid_from__lte=OuterRef("valid_from")).order_by("-valid_from")
    later = changes.filter(valid_from__gt=OuterRef("valid_from"))
    prices = Price.objects.annotate(
        month_currency=Subquery(at_start.values("currency")[:1]),
        currency_end=Subquery(later.order_by("valid_from").values("valid_from")[:1]),
    )
    in_currency = Q(month_currency=None) | Q(month_currency=F("currency"))
    return prices.filter(in_currency).order_by("valid_from", "id")


def load_rate_card(models: Collection[str] | None = None) -> RateCard:
    """Return the rate card of these models; None means all models. Runs one query."""
    prices = _prices_in_their_currency()
    return RateCard(prices if models is None else prices.filter(model__in=models))


def load_rates(wanted: Collection[tuple[int, str]]) -> dict[tuple[int, str], tuple[Rate, ...]]:
    """Return the rates of each (pool id, model), in order of time. Runs one query."""
    card = load_rate_card({model for _, model in wanted})
    return {(pool, model): card.rates(pool, model) for pool, model in wanted}
