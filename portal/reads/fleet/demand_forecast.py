"""Forecast the demand of the visible pools for the next four weeks, by pool and model."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date, datetime, tzinfo
from uuid import uuid4

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
    past = past_demand(first, zone)
    if present is None:
        present = Counter(Gpu.objects.filter(pool__in=by_id, retired_at=None).values_list("pool_id", "model"))
    gpus = Counter({key: count for key, count in present.items() if key[0] in by_id})
    chosen = {*past.known, *gpus}
    keys = sorted(
        (key for key in chosen if key[0] in by_id and (not models or key[1] in models)),
        key=lambda key: (by_id[key[0]].name, key[1]),
    )
    parts = [
        PoolDemand(
            by_id[key[0]],
            key[1],
            past.known.get(key, {}),
            past.forecasts[key] if key in past.forecasts else forecast_demand({}, first),
            gpus[key],
        )
        for key in keys
    ]
    known = sum_of_known_days(part.known for part in parts)
    total = parts[0].forecast if len(parts) == 1 else _total_forecast(past, known, keys, first)
    return DemandOutlook(first, known, total, sum(part.gpus for part in parts), parts)


@dataclass(frozen=True)
class PastDemand:
    """The demand of past days by (pool id, model), and the forecast of each.

    ``version`` differs each time that the demand is read.
    """

    known: DemandByDay
    forecasts: dict[tuple[int, str], DemandForecast]
    version: str


def past_demand(first: date, zone: tzinfo) -> PastDemand:
    """Return the demand of the days before ``first`` of all pools, from the cache if it is known there."""
    key = f"past-demand:{zone}:{first.isoformat()}"
    past: PastDemand | None = cache_get(key)
    if past is None:
        known = daily_demand(first, READ_DAYS, zone)
        forecasts = {part: forecast_demand(of_part, first) for part, of_part in known.items()}
        past = PastDemand(known, forecasts, uuid4().hex)
        cache_set(key, past, CACHE_SECONDS)
    return past


def warm_demand(now: datetime, zone: tzinfo) -> None:
    """Read the demand of past days into the cache, unless it is there, so that no request has to read it."""
    past_demand(now.astimezone(zone).date(), zone)


def _total_forecast(
    past: PastDemand, known: dict[date, float], keys: list[tuple[int, str]], first: date
) -> DemandForecast:
    """Return the forecast of the sum of the chosen pools and models, from the cache if it is known there."""
    chosen = hashlib.sha256(repr([key for key in keys if key in past.known]).encode()).hexdigest()
    key = f"past-demand-sum:{past.version}:{chosen}"
    total: DemandForecast | None = cache_get(key)
    if total is None:
        total = forecast_demand(known, first)
        cache_set(key, total, CACHE_SECONDS)
    return total


def sum_of_known_days(parts: Iterable[dict[date, float]]) -> dict[date, float]:
    """Return the sum of each day that is known."""
    total: dict[date, float] = defaultdict(float)
    for known in parts:
        for day, hours in known.items():
            total[day] += hours
    return dict(total)
