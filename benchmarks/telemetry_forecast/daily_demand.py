"""Score the forecast of the demand of each day against the forecast "same as last week".

Each seed gives the daily demand of six models of GPUs over 40 weeks. The demand depends on the weekday and
on public holidays, and grows or falls slowly. It has noise that lasts for some days, bursts before deadlines,
and one permanent change of the level in some series. Some days are unknown. The last 28 days are forecast
from the days before. The constants of the forecast were chosen with seeds 1 to 20; the benchmark uses others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from datetime import date, timedelta

from telemetry.core.capacity.demand_forecast import HORIZON_DAYS, forecast_demand

UNSEEN_SEEDS = range(101, 121)
SERIES_PER_SEED = 6
WEEKS = 40
FIRST_DAY = date(2026, 1, 5)
PUBLIC_HOLIDAYS = ((1, 6), (4, 3), (4, 6), (5, 1), (5, 14), (5, 25), (10, 3), (11, 1))
UNKNOWN_SHARE = 0.02
DAY = timedelta(days=1)


def score_forecasts(seeds: Iterable[int]) -> float:
    """Return the mean absolute error of the forecasts, divided by that of "same as last week" (MASE).

    Each series counts the same: the result is the mean of the quotients of all series.
    """
    quotients = []
    for seed in seeds:
        for demand in demand_of_seed(seed):
            quotient = _scaled_error(demand)
            if quotient is not None:
                quotients.append(quotient)
    return sum(quotients) / len(quotients)


def demand_of_seed(seed: int) -> list[dict[date, float]]:
    """Return the GPU-hours of each known day, for each model of GPUs."""
    rng = random.Random(f"demand-{seed}")
    return [_series(rng) for _ in range(SERIES_PER_SEED)]


def _series(rng: random.Random) -> dict[date, float]:
    level = math.exp(rng.uniform(math.log(200), math.log(20_000)))
    weekend = rng.uniform(0.35, 0.95)
    profile = [rng.uniform(0.93, 1.07) for _ in range(5)] + [weekend, weekend * rng.uniform(0.9, 1.1)]
    growth = rng.gauss(0.05, 0.12) / 28  # per day
    memory, noise = rng.uniform(0.3, 0.8), rng.uniform(0.05, 0.2)
    change_day = rng.randrange(60, WEEKS * 7 - 35) if rng.random() < 0.3 else None
    change = math.exp(rng.gauss(0, 0.4))
    deadline = rng.randrange(20, WEEKS * 7) if rng.random() < 0.5 else None
    lasting, found = 0.0, {}
    for number in range(WEEKS * 7):
        day = FIRST_DAY + number * DAY
        lasting = memory * lasting + rng.gauss(0, noise)
        value = level * profile[day.weekday()] * math.exp(growth * number + lasting)
        if (day.month, day.day) in PUBLIC_HOLIDAYS:
            value *= weekend
        if change_day is not None and number >= change_day:
            value *= change
        if deadline is not None and deadline - 6 <= number <= deadline:
            value *= 1.5
        if rng.random() >= UNKNOWN_SHARE:
            found[day] = value
    return found


def _scaled_error(demand: dict[date, float]) -> float | None:
    first = FIRST_DAY + (WEEKS * 7 - HORIZON_DAYS) * DAY
    known = {day: value for day, value in demand.items() if day < first}
    ours = naive = 0.0
    for each in forecast_demand(known, first).days:
        real = demand.get(each.day)
        weeks = (each.day - first).days // 7 + 1
        last_week = known.get(each.day - weeks * 7 * DAY)
        if real is not None and last_week is not None:
            ours += abs(real - each.expected)
            naive += abs(real - last_week)
    return ours / naive if naive > 0 else None
