"""Measure how well the forecast of a month's spending agrees with the real spending.

    ./run bench money --only forecast --json

Each seed gives the daily spending of 20 teams in 13 months. The spending depends on the weekday and on public
holidays, and grows slowly. It has noise that lasts for some days, and bursts. On one random day, the level
changes permanently (trend break). Some teams start within the year. The last month is forecast after 4, 7 and
14 days, and the forecasts are compared with the real total of the month. The constants of the forecast were
chosen with seeds 1 to 20. The benchmark uses other seeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from datetime import date, timedelta
from statistics import fmean
from typing import Any

from telemetry.core.spending.spend_forecast import SpendPeriod, forecast_spend

DAYS_ELAPSED = (4, 7, 14)
MONTHS, TEAMS = 13, 20
UNSEEN_SEEDS = range(101, 121)
PUBLIC_HOLIDAYS = ((1, 1), (1, 6), (4, 3), (4, 6), (5, 1), (5, 14), (5, 25), (10, 3), (11, 1))
YEAR_END = ((12, 24), (1, 2))  # first and last day of the period of low spending around New Year


def score_forecasts(seeds: range) -> dict[str, Any]:
    """Return the mean absolute percentage errors of the forecast and of ``linear_forecast``, by known days.

    ``forecast_inside_range`` is the share of forecasts whose range contains the real total. It should be 0.8.
    """
    errors: dict[int, list[float]] = {days: [] for days in DAYS_ELAPSED}
    linear_errors: dict[int, list[float]] = {days: [] for days in DAYS_ELAPSED}
    inside: list[bool] = []
    for seed in seeds:
        for spend, months in organisation(seed):
            month, following = months[-2], months[-1]
            real = sum(amount for day, amount in spend.items() if day >= month)
            for elapsed in DAYS_ELAPSED:
                period = month_after(month, following, elapsed)
                known = {day: amount for day, amount in spend.items() if day < period.known_until}
                past = [
                    month_after(first, last, elapsed)
                    for first, last in zip(months[:-2], months[1:-1], strict=True)
                ]
                forecast = forecast_spend(known, period, past_periods=past)
                linear = linear_forecast(known, period)
                errors[elapsed].append(abs(forecast.expected - real) / real)
                linear_errors[elapsed].append(abs(linear - real) / real)
                inside.append(forecast.low <= real <= forecast.high)
    mape = {str(days): round(fmean(found), 4) for days, found in errors.items()}
    linear_mape = {str(days): round(fmean(found), 4) for days, found in linear_errors.items()}
    return {
        "forecast_months": len(errors[DAYS_ELAPSED[0]]),
        "forecast_mape": mape,
        "forecast_linear_mape": linear_mape,
        "forecast_below_linear": all(mape[key] < linear_mape[key] for key in mape),
        "forecast_inside_range": round(sum(inside) / len(inside), 3),
    }


def linear_forecast(spend_by_day: Mapping[date, float], period: SpendPeriod) -> float:
    """Return the total of the period if its mean daily spending so far continues."""
    known = sum(amount for day, amount in spend_by_day.items() if period.start <= day < period.known_until)
    return known * (period.end - period.start).days / (period.known_until - period.start).days


def month_after(month: date, following: date, elapsed: int) -> SpendPeriod:
    """Return the month ``[month, following)`` with ``elapsed`` known days."""
    return SpendPeriod(month, following, month + timedelta(days=elapsed))


def organisation(seed: int) -> list[tuple[dict[date, float], list[date]]]:
    """Return (spending by day, months) for each team.

    ``months`` has the first day of each month, and of the month after the last one.
    """
    rng = random.Random(seed)
    first = date(2024 + rng.randrange(2), rng.randrange(1, 13), 1)
    months = [first]
    for _ in range(MONTHS):
        months.append((months[-1] + timedelta(days=32)).replace(day=1))
    return [(team_spending(rng, months), months) for _ in range(TEAMS)]


def team_spending(rng: random.Random, months: list[date]) -> dict[date, float]:
    """Return the daily spending of a team over the months."""
    length = (months[-1] - months[0]).days
    starts = months[rng.randrange(2, 9)] if rng.random() < 0.2 else months[0]
    level = math.exp(rng.uniform(math.log(50), math.log(5000)))
    weekend, friday = rng.uniform(0.15, 0.85), rng.uniform(0.8, 1.0)
    noise, persistence = rng.uniform(0.08, 0.25), rng.uniform(0.3, 0.7)
    growth = rng.uniform(-0.15, 0.35) / 365
    break_day = rng.randrange(30, length)
    break_factor = math.exp(rng.choice((-1, 1)) * rng.uniform(math.log(1.35), math.log(2.2)))
    bursts = burst_factors(rng, length)
    spend: dict[date, float] = {}
    deviation = 0.0
    for index in range(length):
        day = months[0] + timedelta(days=index)
        deviation = persistence * deviation + rng.gauss(0, noise)
        if day < starts:
            continue
        factor = {4: friday, 5: weekend, 6: weekend}.get(day.weekday(), 1.0)
        if (day.month, day.day) in PUBLIC_HOLIDAYS:
            factor = min(factor, weekend)
        if (day.month, day.day) >= YEAR_END[0] or (day.month, day.day) <= YEAR_END[1]:
            factor *= 0.6
        amount = level * factor * math.exp(deviation + growth * index) * bursts.get(index, 1.0)
        spend[day] = round(amount * (break_factor if index >= break_day else 1.0), 2)
    return spend


def burst_factors(rng: random.Random, length: int) -> Mapping[int, float]:
    """Return the factors of the days with bursts, such as days before a deadline.

    A burst begins about every 60 days.
    """
    factors: dict[int, float] = {}
    day = rng.randrange(60)
    while day < length:
        height = rng.uniform(1.3, 2.2)
        for burst_day in range(day, day + rng.randrange(2, 7)):
            factors[burst_day] = height
        day += 10 + rng.randrange(100)
    return factors
