"""Forecast the demand of the visible pools for the next four weeks, by pool and model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date, datetime, tzinfo

from portal.answer_cache import cache_get, cache_set
from scheduler.models import Gpu, Pool
from telemetry.core.capacity.demand_forecast import (
    BACKTEST_ORIGINS,
    HISTORY_DAYS,
    HORIZON_DAYS,
    DemandForecast,
    forecast_demand,
)
from telemetry.core.spending.spend_forecast import DAYS_OF_WEEK
from telemetry.reads.capacity.daily_demand import DemandByDay, daily_demand

# Past days do not change, so they are read once a day.
CACHE_SECONDS = 86_400
READ_DAYS = HISTORY_DAYS + HORIZON_DAYS + BACKTEST_ORIGINS * DAYS_OF_WEEK


@dataclass(frozen=True)
class PoolDemand:
    """The demand of one model in one pool: its known days, its forecast, and its GPUs at present."""

    pool: Pool
    model: str
    known: dict[date, float]
    forecast: DemandForecast
    gpus: int


@dataclass(frozen=True)
class DemandOutlook:
    """The demand of several pools and models: the sum, and each part. ``first`` is the first forecast day."""

    first: date
    known: dict[date, float]
    forecast: DemandForecast
    gpus: int
    parts: list[PoolDemand]


def demand_outlook(
    pools: Collection[Pool],
    models: Collection[str],
    now: datetime,
    zone: tzinfo,
    present: Counter[tuple[int, str]] | None = None,
) -> DemandOutlook:
    """Return the outlook of the chosen pools and models. An empty ``models`` means all.

    ``present`` has the number of GPUs by pool and model; without it, it is read.
    """
    first = now.astimezone(zone).date()
    by_id = {pool.pk: pool for pool in pools}
    found = {
        key: known
        for key, known in demand_before(first, zone).items()
        if key[0] in by_id and (not models or key[1] in models)
    }
    if present is None:
        present = Counter(Gpu.objects.filter(pool__in=by_id, retired_at=None).values_list("pool_id", "model"))
    gpus = Counter({key: count for key, count in present.items() if key[0] in by_id})
    keys = sorted(
        {*found, *(key for key in gpus if not models or key[1] in models)},
        key=lambda key: (by_id[key[0]].name, key[1]),
    )
    parts = [
        PoolDemand(
            by_id[pool],
            model,
            known := found.get((pool, model), {}),
            forecast_demand(known, first),
            gpus[pool, model],
        )
        for pool, model in keys
    ]
    known = sum_of_known_days(found.values())
    total = parts[0].forecast if len(parts) == 1 else forecast_demand(known, first)
    return DemandOutlook(first, known, total, sum(part.gpus for part in parts), parts)


def demand_before(first: date, zone: tzinfo) -> DemandByDay:
    """Return the demand of the days before ``first`` of all pools, from the cache if it is known there."""
    key = f"daily-demand:{zone}:{first.isoformat()}"
    known: DemandByDay | None = cache_get(key)
    if known is None:
        known = daily_demand(first, READ_DAYS, zone)
        cache_set(key, known, CACHE_SECONDS)
    return known


def sum_of_known_days(parts: Iterable[dict[date, float]]) -> dict[date, float]:
    """Return the sum of each day that is known."""
    total: dict[date, float] = defaultdict(float)
    for known in parts:
        for day, hours in known.items():
            total[day] += hours
    return dict(total)
