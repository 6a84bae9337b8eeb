"""Forecast the demand of each of the next days in GPU-hours, and test the method on past weeks.

The demand of a day is the sum of the held GPU-hours and of the GPU-hours for which requests waited. The
method has four parts, and each can be checked by hand:

1. The weekday profile: the usual factor of each weekday, as a median over the last weeks.
2. The level: the demand of a usual day, and the break after which it counts, as in the forecast of spending.
3. The trend: the usual change from week to week, as the median slope between pairs of weeks (Theil and Sen).
   It is damped: each day ahead adds less than the day before.
4. The range: the errors of the same method in the past, by the number of weeks ahead.

The backtest makes the forecast as of each of the past weeks, from the days before it. Its scaled error (MASE,
Hyndman and Koehler) divides the mean error by that of the forecast "same as last week": below 1 is better.

Unknown days have no entry. They count neither for the forecast nor for its errors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from operator import mul
from statistics import fmean, median

from telemetry.core.spending.spend_forecast import (
    BURST_LIMIT,
    DAYS_OF_WEEK,
    HIGH_QUANTILE,
    LOW_QUANTILE,
    days_since_break,
    quantile,
)

HORIZON_DAYS = 28
HISTORY_DAYS = 26 * DAYS_OF_WEEK
MIN_KNOWN_DAYS = 21  # with fewer known days there is no forecast
BACKTEST_ORIGINS = 8  # past weeks as of which the forecast is made again
PROFILE_WEEKS = 20
PROFILE_PRIOR_WEEKS = 0.25  # weight of a flat profile, in weeks
TREND_WEEKS = 8
MIN_TREND_WEEKS = 4
TREND_WEIGHT = 0.75  # expected part of the past slope
TREND_DAMPING = 0.97  # factor of the trend for each day ahead
MAX_CHANGE = 0.5  # the trend changes the level by at most this share
LEVEL_DAYS = 56
LEVEL_HALF_LIFE_DAYS = 8.0
MIN_RANGE_ERRORS = 7
UNTESTED_SPREAD = 0.5  # half the width of the range, as share of the forecast, without a backtest
DAY = timedelta(days=1)


@dataclass(frozen=True)
class DayForecast:
    """The expected GPU-hours of a day. ``low`` and ``high`` are the 10th and the 90th percentile."""

    day: date
    expected: float
    low: float
    high: float


@dataclass(frozen=True)
class Backtest:
    """The errors of the forecast over past weeks.

    ``mase`` is the mean error as a multiple of the error of "same as last week", and ``error_share`` as part
    of the mean demand. Both are None if no past week could be tested.
    """

    origins: int = 0
    days: int = 0
    mase: float | None = None
    error_share: float | None = None


@dataclass(frozen=True)
class DemandForecast:
    """The demand of the next days and the errors of the method. ``days`` is empty if too few are known."""

    days: tuple[DayForecast, ...]
    backtest: Backtest
    known_days: int


@dataclass(frozen=True)
class _Error:
    days_ahead: int
    real: float
    expected: float
    naive: float | None


def forecast_demand(
    demand_by_day: Mapping[date, float], first: date, days: int = HORIZON_DAYS
) -> DemandForecast:
    """Return the forecast of the ``days`` days from ``first`` on, from the known days before ``first``."""
    known = _known_before(demand_by_day, first)
    errors = _past_errors(demand_by_day, first, days)
    backtest = _backtest(errors)
    if len(known) < MIN_KNOWN_DAYS:
        return DemandForecast((), backtest, len(known))
    ratios: dict[int, list[float]] = defaultdict(list)
    for error in errors:
        if error.expected > 0:
            ratios[(error.days_ahead - 1) // DAYS_OF_WEEK].append(error.real / error.expected)
    expected = expected_days(known, first, days)
    return DemandForecast(
        tuple(
            _with_range(first + number * DAY, value, ratios[number // DAYS_OF_WEEK])
            for number, value in enumerate(expected)
        ),
        backtest,
        len(known),
    )


def expected_days(known: Sequence[tuple[date, float]], first: date, days: int) -> list[float]:
    """Return the expected demand of the days from ``first`` on. ``known`` is in order, the latest first."""
    profile = weekday_factors(known)
    levels = [(day, value / profile[day.weekday()]) for day, value in known]
    levels = levels[: min(days_since_break([value for _, value in levels]), LEVEL_DAYS)]
    slope = _daily_slope(levels) * TREND_WEIGHT
    level = max(0.0, _level_before(levels, slope, first))
    found, change, step = [], 0.0, slope
    for number in range(days):
        step *= TREND_DAMPING
        change = max(-MAX_CHANGE * level, min(MAX_CHANGE * level, change + step))
        found.append(max(0.0, (level + change) * profile[(first + number * DAY).weekday()]))
    return found


def weekday_factors(known: Sequence[tuple[date, float]]) -> list[float]:
    """Return the factor of each weekday, Monday first; their mean is 1.

    The factor is the median of the shares of this weekday in its weeks, mixed with 1 if there are few weeks.
    The mean of a week is that of its known days after division by the factors found so far, so that an
    unknown Sunday does not raise the mean.
    """
    factors = [1.0] * DAYS_OF_WEEK
    if not known:
        return factors
    last = known[0][0]
    weeks: dict[int, list[tuple[date, float]]] = defaultdict(list)
    for day, value in known:
        weeks[(last - day).days // DAYS_OF_WEEK].append((day, value))
    recent = [week for number, week in weeks.items() if number < PROFILE_WEEKS]
    for _ in range(2):
        factors = _factors_of_weeks(recent, factors)
    return factors


def _factors_of_weeks(weeks: Sequence[Sequence[tuple[date, float]]], known: Sequence[float]) -> list[float]:
    """Return the factor of each weekday; ``known`` are the factors by which the means of weeks are found."""
    shares: list[list[float]] = [[] for _ in range(DAYS_OF_WEEK)]
    for week in weeks:
        total, weight = sum(value for _, value in week), sum(known[day.weekday()] for day, _ in week)
        if total > 0 and weight > 0:
            for day, value in week:
                shares[day.weekday()].append(value * weight / total)
    raw = [_mixed_factor(own) for own in shares]
    mean = fmean(raw)
    return [value / mean for value in raw]


def _mixed_factor(shares: Sequence[float]) -> float:
    """Return the median of the shares of one weekday, mixed with 1 if there are few weeks."""
    if not shares:
        return 1.0
    factor: float = len(shares) * median(shares) + PROFILE_PRIOR_WEEKS
    return factor / (len(shares) + PROFILE_PRIOR_WEEKS)


def _level_before(levels: Sequence[tuple[date, float]], slope: float, first: date) -> float:
    """Return the level just before ``first``: a mean in which later days count more.

    Each day is moved along the trend to ``first``. Bursts count only in part.
    """
    moved = [(day, value + slope * ((first - day).days - 1)) for day, value in levels]
    highest = BURST_LIMIT * median(value for _, value in moved)
    weights = [0.5 ** ((first - day).days / LEVEL_HALF_LIFE_DAYS) for day, _ in moved]
    values = [min(value, highest) if highest > 0 else value for _, value in moved]
    total: float = sum(map(mul, weights, values))
    weight: float = sum(weights)
    return total / weight


def _daily_slope(levels: Sequence[tuple[date, float]]) -> float:
    """Return the usual change of the level per day, from the means of whole weeks; 0 with few weeks."""
    if not levels:
        return 0.0
    last = levels[0][0]
    weeks: dict[int, list[float]] = defaultdict(list)
    for day, value in levels:
        weeks[(last - day).days // DAYS_OF_WEEK].append(value)
    means = [(age, fmean(values)) for age, values in weeks.items() if age < TREND_WEEKS and len(values) >= 4]
    if len(means) < MIN_TREND_WEEKS:
        return 0.0
    slopes = [
        (newer - older) / (age - newer_age)
        for newer_age, newer in means
        for age, older in means
        if age > newer_age
    ]
    slope: float = median(slopes)
    return slope / DAYS_OF_WEEK


def _known_before(demand_by_day: Mapping[date, float], first: date) -> list[tuple[date, float]]:
    """Return the known days of the history before ``first``, the latest first."""
    days = (first - n * DAY for n in range(1, HISTORY_DAYS + 1))
    return [(day, float(demand_by_day[day])) for day in days if day in demand_by_day]


def _past_errors(demand_by_day: Mapping[date, float], first: date, days: int) -> list[_Error]:
    """Return the errors of the forecasts as of past weeks. Each day after the origin is compared if known."""
    found = []
    for weeks_back in range(1, BACKTEST_ORIGINS + 1):
        origin = first - (days + (weeks_back - 1) * DAYS_OF_WEEK) * DAY
        known = _known_before(demand_by_day, origin)
        if len(known) < MIN_KNOWN_DAYS:
            break
        for number, expected in enumerate(expected_days(known, origin, days)):
            day = origin + number * DAY
            if day in demand_by_day:
                found.append(
                    _Error(number + 1, demand_by_day[day], expected, _last_week(demand_by_day, origin, day))
                )
    return found


def _last_week(demand_by_day: Mapping[date, float], origin: date, day: date) -> float | None:
    """Return the demand of the same weekday in the last week before ``origin``; None if it is unknown."""
    return demand_by_day.get(day - ((day - origin).days // DAYS_OF_WEEK + 1) * DAYS_OF_WEEK * DAY)


def _backtest(errors: Sequence[_Error]) -> Backtest:
    if not errors:
        return Backtest()
    ours = sum(abs(error.real - error.expected) for error in errors if error.naive is not None)
    naive = sum(abs(error.real - error.naive) for error in errors if error.naive is not None)
    total = sum(error.real for error in errors)
    origins = sum(error.days_ahead == 1 for error in errors)
    return Backtest(
        origins=origins,
        days=len(errors),
        mase=ours / naive if naive > 0 else None,
        error_share=sum(abs(e.real - e.expected) for e in errors) / total if total > 0 else None,
    )


def _with_range(day: date, expected: float, ratios: Sequence[float]) -> DayForecast:
    if len(ratios) < MIN_RANGE_ERRORS:
        low, high = 1 - UNTESTED_SPREAD, 1 + UNTESTED_SPREAD
    else:
        low, high = min(1.0, quantile(ratios, LOW_QUANTILE)), max(1.0, quantile(ratios, HIGH_QUANTILE))
    return DayForecast(day, expected, expected * low, expected * high)
