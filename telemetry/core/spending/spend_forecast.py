"""Forecast the spending of a period, such as a month, from the spending of each day.

The method has four parts. Each can be checked by hand:

1. The weekday profile: the usual share of each weekday in its week, as a median over the last weeks.
2. The level: the spending of a usual day after division by the profile. It is a weighted sum of two means of
   the last weeks: the plain mean, and a mean in which later days count more.
3. The break: if the last days differ from the weeks before by more than the noise of the days, only the days
   since the change count.
4. The range: the errors that the same method made at the same day of earlier periods.

The profile and the level are a classical multiplicative decomposition with simple exponential smoothing. The
range follows from the evaluation on a rolling origin. Both methods are described by Hyndman and
Athanasopoulos, "Forecasting: Principles and Practice", chapters 3, 5 and 8. The break is found with a
mean-shift test in the way of Page's CUSUM. The scale of the noise is the median absolute deviation, so single
bursts do not hide or cause a break.

Amounts are floats in any unit. If each day is multiplied by a factor, the forecast is multiplied by it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from math import sqrt
from operator import mul
from statistics import fmean, median

DAYS_OF_WEEK = 7
PROFILE_WEEKS = 20  # weeks from which the weekday profile is learned
PROFILE_PRIOR_WEEKS = 0.25  # weight of a flat profile, in weeks
LEVEL_DAYS = 84  # number of latest days from which the level (the usual charge of a day) is computed
RECENT_HALF_LIFE_DAYS = 10.0
RECENT_WEIGHT = 0.6  # weight of the latest days in the level; the mean of LEVEL_DAYS has the other 0.4
BREAK_MIN_DAYS, BREAK_MAX_DAYS = 7, 42  # possible lengths of the time since a break
BREAK_BASE_DAYS = 56  # days before a possible break; the days after the break are compared with them
BREAK_MIN_CHANGE = 0.3  # a smaller relative change of the level is not a break
MIN_NOISE = 0.05  # the noise of days is at least this share of the level
BREAK_MIN_SCORE = 8.0  # minimum difference of the two medians, in standard errors
BURST_LIMIT = 1.5  # days above this multiple of the usual day count as this multiple
LOW_QUANTILE, HIGH_QUANTILE = 0.1, 0.9
MIN_PAST_PERIODS = 4  # with fewer past periods, the range comes from the noise of the days
NORMAL_QUANTILE_90 = 1.2816
DAY = timedelta(days=1)


@dataclass(frozen=True)
class SpendForecast:
    """The expected total of a period with its range, and the record of the same method in past periods.

    ``low`` and ``high`` are the 10th and the 90th percentile. ``past_periods`` is the number of past periods
    with a forecast, and ``past_inside`` the number of those that ended inside their range. ``past_error`` is
    the median error of these forecasts, as a part of the real total of the period; None without one.
    """

    expected: float
    low: float
    high: float
    past_periods: int = 0
    past_inside: int = 0
    past_error: float | None = None


@dataclass(frozen=True)
class SpendPeriod:
    """A period ``[start, end)`` whose spending is known for the days before ``known_until``.

    ``share_of_next_day`` is the part of the day ``known_until`` that has also passed, from 0 to below 1.
    """

    start: date
    end: date
    known_until: date
    share_of_next_day: float = 0.0

    def __post_init__(self) -> None:
        if not self.start <= self.known_until <= self.end or self.start == self.end:
            raise ValueError(
                f"known_until: {self.known_until} is not within a period from {self.start} to {self.end}"
            )
        if not 0 <= self.share_of_next_day < 1:
            raise ValueError(f"share_of_next_day: {self.share_of_next_day} is not from 0 to below 1")


def forecast_spend(
    spend_by_day: Mapping[date, float],
    period: SpendPeriod,
    *,
    past_periods: Sequence[SpendPeriod] = (),
    committed_by_day: Mapping[date, float] | None = None,
) -> SpendForecast:
    """Return the forecast of the period's total.

    ``spend_by_day`` has the spending of the days before and within the period. Days without an entry have no
    spending if they are after the first entry. ``committed_by_day`` is spending that is certain, such as
    booked reservations: the forecast of a day is at least this amount. ``past_periods`` are earlier periods
    of the same kind, up to the same day; the method is applied to each as if it were the current period.
    """
    days = _Days(spend_by_day)
    known = days.total(period.start, period.known_until) + days.on(period.known_until)
    rest, noise = _forecast_rest(days, period, committed_by_day or {})
    errors = [error for error in (_past_error(days, past) for past in past_periods) if error is not None]
    low_factor, high_factor = _range_factors([error.ratio for error in errors], noise)
    inside = sum(_was_inside(error, errors) for error in errors)
    later_days = _days_between(period.known_until + DAY, period.end)
    floor = sum((committed_by_day or {}).get(day, 0.0) for day in later_days)
    return SpendForecast(
        expected=known + rest,
        low=known + max(min(rest, floor), rest * low_factor),
        high=known + rest * high_factor,
        past_periods=len(errors),
        past_inside=inside,
        past_error=_median_error(errors),
    )


class _Days:
    """Daily spending. Days without an entry have no spending; days before the first entry are not known."""

    def __init__(self, spend_by_day: Mapping[date, float]) -> None:
        self.spend = spend_by_day
        self.first = min(spend_by_day, default=None)

    def on(self, day: date) -> float:
        return float(self.spend.get(day, 0.0))

    def total(self, start: date, end: date) -> float:
        return sum(self.on(day) for day in _days_between(start, end))

    def before(self, end: date, length: int) -> list[tuple[date, float]]:
        """Return up to ``length`` known days before ``end``, the latest first."""
        known = 0 if self.first is None else max(0, (end - self.first).days)
        return [(end - n * DAY, self.on(end - n * DAY)) for n in range(1, min(length, known) + 1)]


def _days_between(start: date, end: date) -> list[date]:
    return [start + n * DAY for n in range((end - start).days)]


def _forecast_rest(days: _Days, period: SpendPeriod, committed: Mapping[date, float]) -> tuple[float, float]:
    """Return the expected spending after the known time, and its relative standard error from daily noise."""
    known = days.before(period.known_until, PROFILE_WEEKS * DAYS_OF_WEEK)
    profile = weekday_profile(known)
    levels = [spend / profile[day.weekday()] for day, spend in known]
    used = levels[: days_since_break(levels)][:LEVEL_DAYS]
    level = _blended_level(used)
    rest = 0.0
    for day in _days_between(period.known_until, period.end):
        expected = max(level * profile[day.weekday()], committed.get(day, 0.0))
        if day == period.known_until:
            # The spending of the current day up to now is known already.
            expected *= 1 - period.share_of_next_day
        rest += expected
    return rest, _relative_error(used, level, (period.end - period.known_until).days)


def weekday_profile(known: Sequence[tuple[date, float]]) -> list[float]:
    """Return the factor of each weekday, Monday first; their mean is 1.

    ``known`` are consecutive days with their spending, the latest first. For each weekday the factor is the
    median of its shares in the past weeks, mixed with 1 if there are few weeks.
    """
    shares: list[list[float]] = [[] for _ in range(DAYS_OF_WEEK)]
    for first in range(0, len(known) - DAYS_OF_WEEK + 1, DAYS_OF_WEEK):
        week = known[first : first + DAYS_OF_WEEK]
        mean = fmean(spend for _, spend in week)
        if mean > 0:
            for day, spend in week:
                shares[day.weekday()].append(spend / mean)
    factors = [
        (len(own) * median(own) + PROFILE_PRIOR_WEEKS) / (len(own) + PROFILE_PRIOR_WEEKS) if own else 1.0
        for own in shares
    ]
    mean = fmean(factors)
    return [factor / mean for factor in factors]


def days_since_break(levels: Sequence[float]) -> int:
    """Return how many of the latest days follow the last break; all days if there is no break.

    ``levels`` are daily values without the weekday profile, the latest first. Each split has two sides. The
    candidate is the split with the smallest sum of absolute differences between the days and the median of
    their side. The candidate is a break if the two medians differ by much more than the noise of the days.
    """
    window = levels[: BREAK_MAX_DAYS + BREAK_BASE_DAYS]
    lengths = range(BREAK_MIN_DAYS, min(BREAK_MAX_DAYS, len(window) - DAYS_OF_WEEK) + 1)
    if not lengths:
        return len(levels)
    length = min(lengths, key=lambda days: _spread(window[:days]) + _spread(window[days:]))
    after, before = window[:length], window[length:]
    usual_after, usual_before = median(after), median(before)
    change, highest = abs(usual_after - usual_before), max(usual_after, usual_before)
    if change < BREAK_MIN_CHANGE * highest or highest == 0:
        return len(levels)
    noise = max(_deviation(before), _deviation(after), MIN_NOISE * highest)
    return length if change > BREAK_MIN_SCORE * noise * sqrt(1 / length + 1 / len(before)) else len(levels)


def _spread(values: Sequence[float]) -> float:
    """Return the sum of absolute differences from the median."""
    middle = median(values)
    spread: float = sum(abs(value - middle) for value in values)
    return spread


def _deviation(values: Sequence[float]) -> float:
    """Return the median absolute deviation, scaled to the standard deviation of a normal distribution."""
    middle = median(values)
    deviation: float = median(abs(value - middle) for value in values)
    return 1.4826 * deviation


def _blended_level(levels: Sequence[float]) -> float:
    if not levels:
        return 0.0
    # A burst of a few days is not a new level.
    highest = BURST_LIMIT * median(levels)
    levels = [min(level, highest) for level in levels] if highest > 0 else levels
    weights: list[float] = [0.5 ** (age / RECENT_HALF_LIFE_DAYS) for age in range(len(levels))]
    recent: float = sum(map(mul, weights, levels)) / sum(weights)
    return RECENT_WEIGHT * recent + (1 - RECENT_WEIGHT) * fmean(levels)


def _relative_error(levels: Sequence[float], level: float, days_left: int) -> float:
    """Return the relative standard error of the spending in the rest of the period, from the noise of days.

    The level has the error of a mean of the recent days. The noise of the future days averages out.
    """
    if len(levels) < 2 or level <= 0 or days_left == 0:
        return 0.5 if days_left else 0.0
    noise = sqrt(fmean([(value - level) ** 2 for value in levels])) / level
    return noise * sqrt(1 / min(len(levels), 2 * RECENT_HALF_LIFE_DAYS) + 1 / days_left)


@dataclass(frozen=True)
class _PastError:
    ratio: float  # real spending after the known time / forecast of this spending
    noise: float
    of_total: float | None  # difference of the forecast total / real total; None if nothing was spent


def _median_error(errors: Sequence[_PastError]) -> float | None:
    """Return the median error of the totals of past periods; None if none of them had a total."""
    known = [error.of_total for error in errors if error.of_total is not None]
    return median(known) if known else None


def _past_error(days: _Days, past: SpendPeriod) -> _PastError | None:
    """Return the error of the method in a past period.

    Return None if less than a week of spending was known, or if the forecast was zero.
    """
    if days.first is None or days.first + DAYS_OF_WEEK * DAY > past.known_until:
        return None
    rest, noise = _forecast_rest(days, past, {})
    real = days.total(past.known_until, past.end) - days.on(past.known_until) * past.share_of_next_day
    total = days.total(past.start, past.end)
    of_total = abs(rest - real) / total if total > 0 else None
    return _PastError(real / rest, noise, of_total) if rest > 0 else None


def _range_factors(ratios: Sequence[float], noise: float) -> tuple[float, float]:
    """Return the factors that turn the expected rest into the low and the high end of the range.

    The low factor is at most 1, and the high factor is at least 1.
    """
    if len(ratios) < MIN_PAST_PERIODS:
        spread = NORMAL_QUANTILE_90 * noise
        return max(0.0, 1 - spread), 1 + spread
    return (
        min(1.0, max(0.0, quantile(ratios, LOW_QUANTILE))),
        max(1.0, quantile(ratios, HIGH_QUANTILE)),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile at the plotting position ``share * (n + 1)``, limited to the extreme values."""
    ordered = sorted(values)
    position = min(max(share * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _was_inside(error: _PastError, errors: Sequence[_PastError]) -> bool:
    """Return True if a past period ended inside the range made from the errors of all other periods."""
    others = [other.ratio for other in errors if other is not error]
    low, high = _range_factors(others, error.noise)
    return low <= error.ratio <= high
