"""Test the forecast of spending: its parts, its range, and properties that hold for any spending."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.money_month.forecast_score import linear_forecast, score_forecasts
from telemetry.core.spending.spend_forecast import SpendPeriod, forecast_spend, weekday_profile

MARCH = dt.date(2026, 3, 1)
APRIL = dt.date(2026, 4, 1)
DAY = dt.timedelta(days=1)
amounts = st.floats(min_value=0, max_value=1e6, allow_nan=False).map(lambda amount: round(amount, 2))


def after(days: int, share: float = 0.0) -> SpendPeriod:
    """Return March 2026 with ``days`` known days and a share of the next day."""
    return SpendPeriod(MARCH, APRIL, MARCH + days * DAY, share)


def daily(values: list[float], last: dt.date) -> dict[dt.date, float]:
    """Return consecutive days with the values; ``last`` is the day of the last value."""
    return {last - (len(values) - 1 - index) * DAY: value for index, value in enumerate(values)}


def months_before(known: int) -> list[SpendPeriod]:
    """Return the ten months before March 2026, each with at most ``known`` known days."""
    firsts = [dt.date(2025, month, 1) for month in range(5, 13)] + [dt.date(2026, 1, 1), dt.date(2026, 2, 1)]
    return [SpendPeriod(a, b, min(a + known * DAY, b)) for a, b in itertools.pairwise([*firsts, MARCH])]


@given(amount=st.floats(min_value=0.01, max_value=1e6), known=st.integers(1, 30))
def test_constant_days_continue_exactly(amount: float, known: int) -> None:
    spend = daily([amount] * 120, MARCH + (known - 1) * DAY)
    forecast = forecast_spend(spend, after(known), past_periods=months_before(known))
    assert forecast.expected == pytest.approx(31 * amount)
    assert (forecast.low, forecast.high) == pytest.approx((31 * amount, 31 * amount))


@given(values=st.lists(amounts, min_size=1, max_size=150), known=st.integers(0, 31))
def test_the_forecast_is_never_below_the_spending_so_far_and_lies_inside_its_range(
    values: list[float], known: int
) -> None:
    spend = daily(values, MARCH + (known - 1) * DAY)
    forecast = forecast_spend(spend, after(known), past_periods=months_before(known))
    so_far = sum(amount for day, amount in spend.items() if day >= MARCH)
    assert so_far - 1e-6 <= forecast.low <= forecast.expected + 1e-6
    assert forecast.expected <= forecast.high + 1e-6


@given(values=st.lists(amounts, min_size=1, max_size=90), order=st.randoms(use_true_random=False))
def test_the_order_of_the_inputs_does_not_matter(values: list[float], order: object) -> None:
    spend, past = daily(values, MARCH + 6 * DAY), months_before(7)
    shuffled, shuffled_past = list(spend.items()), list(past)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    order.shuffle(shuffled_past)  # type: ignore[attr-defined]
    assert forecast_spend(spend, after(7), past_periods=past) == forecast_spend(
        dict(shuffled), after(7), past_periods=shuffled_past
    )


@given(values=st.lists(amounts, min_size=1, max_size=90), factor=st.sampled_from([0.5, 2.0, 1024.0]))
def test_the_unit_of_the_amounts_does_not_change_the_forecast(values: list[float], factor: float) -> None:
    spend = daily(values, MARCH + 6 * DAY)
    one = forecast_spend(spend, after(7), past_periods=months_before(7))
    other = forecast_spend(
        {day: amount * factor for day, amount in spend.items()}, after(7), past_periods=months_before(7)
    )
    assert other.expected == pytest.approx(one.expected * factor)
    assert (other.low, other.high) == pytest.approx((one.low * factor, one.high * factor))


def test_a_complete_period_is_its_sum() -> None:
    spend = daily([float(n) for n in range(60)], APRIL - DAY)
    forecast = forecast_spend(spend, after(31))
    assert forecast.expected == forecast.low == forecast.high == sum(range(29, 60))


def test_days_of_the_weekend_are_expected_to_cost_as_little_as_usual() -> None:
    def usual(day: dt.date) -> float:
        return 20.0 if day.weekday() >= 5 else 100.0

    history = {MARCH - n * DAY: usual(MARCH - n * DAY) for n in range(1, 141)}
    so_far = {MARCH + n * DAY: usual(MARCH + n * DAY) for n in range(4)}
    real = sum(usual(MARCH + n * DAY) for n in range(31))
    expected = forecast_spend({**history, **so_far}, after(4)).expected
    assert expected == pytest.approx(real, rel=0.03)
    linear = sum(so_far.values()) * 31 / 4
    assert abs(expected - real) < abs(linear - real)


def test_the_profile_of_one_week_is_mixed_with_a_quarter_of_a_flat_week() -> None:
    monday = dt.date(2026, 3, 2)
    week = [(monday + n * DAY, 140.0 if n == 0 else 0.0) for n in range(7)]
    profile = weekday_profile(week[::-1])
    assert profile == pytest.approx([(7 + 0.25) / 1.25, *[0.25 / 1.25] * 6])


def test_the_documented_example_is_computed(root: Path) -> None:
    def usual(day: dt.date) -> float:
        return 20.0 if day.weekday() >= 5 else 100.0

    first, august, september = dt.date(2026, 3, 1), dt.date(2026, 8, 1), dt.date(2026, 9, 1)
    spend = {first + n * DAY: usual(first + n * DAY) for n in range((august - first).days + 4)}
    period = SpendPeriod(august, september, august + 4 * DAY)
    booked = {august + 14 * DAY: 500.0}
    figures = (
        linear_forecast(spend, period),
        forecast_spend(spend, period).expected,
        forecast_spend(spend, period, committed_by_day=booked).expected,
        sum(usual(august + n * DAY) for n in range(31)),
    )
    table = (root / "docs" / "money.md").read_text().partition("<!-- forecast")[2].partition("<!-- /")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert [row.split("|")[2].strip() for row in rows] == [f"{figure:,.2f}" for figure in figures]


def test_after_a_lasting_change_only_the_days_since_count() -> None:
    spend = daily([100.0, 101.0] * 45 + [300.0, 303.0] * 5, MARCH + 6 * DAY)
    assert forecast_spend(spend, after(7)).expected == pytest.approx(31 * 301, rel=0.03)


def test_a_burst_of_three_days_is_not_a_lasting_change() -> None:
    spend = daily([100.0, 101.0] * 45 + [300.0] * 3, MARCH + 6 * DAY)
    expected = forecast_spend(spend, after(7)).expected
    assert 600 + 400 + 24 * 100 < expected < 1_000 + 24 * 120


def test_a_booked_day_is_not_forecast_below_its_booking() -> None:
    spend = daily([10.0] * 60, MARCH + 6 * DAY)
    booked = {MARCH + 20 * DAY: 500.0, MARCH + 21 * DAY: 5.0}
    forecast = forecast_spend(spend, after(7), committed_by_day=booked)
    assert forecast.expected == pytest.approx(30 * 10 + 500)
    assert forecast.low >= 7 * 10 + 505


def test_the_spending_of_the_elapsed_part_of_today_is_not_forecast_again() -> None:
    spend = daily([10.0] * 60 + [4.0], MARCH + 7 * DAY)
    assert forecast_spend(spend, after(7, 0.5)).expected == pytest.approx(70 + 4 + 5 + 23 * 10)


def test_without_any_spending_nothing_is_expected() -> None:
    assert forecast_spend({}, after(4), past_periods=months_before(4)).expected == 0


def test_the_range_comes_from_the_errors_at_the_same_day_of_earlier_months() -> None:
    # Each second month falls to half after its seventh day, so a forecast at the seventh day is too high.
    def amount(day: dt.date) -> float:
        return 50.0 if day.month % 2 == 0 and day.day > 7 else 100.0

    first = dt.date(2025, 4, 1)
    spend = {first + n * DAY: amount(first + n * DAY) for n in range((MARCH - first).days + 7)}
    forecast = forecast_spend(spend, after(7), past_periods=months_before(7))
    assert forecast.past_periods == 10
    assert forecast.low < 31 * 80 and forecast.high > 31 * 95
    assert forecast.past_inside >= 8
    errors = []
    for past in months_before(7)[: forecast.past_periods]:
        known = {day: amount for day, amount in spend.items() if day < past.known_until}
        real = sum(amount for day, amount in spend.items() if past.start <= day < past.end)
        errors.append(abs(forecast_spend(known, past).expected - real) / real)
    assert forecast.past_error == pytest.approx(median(errors)) and 0.1 < median(errors) < 0.5


def test_a_forecast_without_past_periods_has_no_past_error() -> None:
    assert forecast_spend({MARCH: 100.0}, after(4)).past_error is None


def test_a_time_outside_the_period_is_refused() -> None:
    with pytest.raises(ValueError, match=r"known_until: 2026-04-02 is not within a period from 2026-03-01"):
        SpendPeriod(MARCH, APRIL, APRIL + DAY)
    with pytest.raises(ValueError, match=r"share_of_next_day: 1.0 is not from 0 to below 1"):
        SpendPeriod(MARCH, APRIL, MARCH, 1.0)


@pytest.mark.long
def test_on_unseen_organisations_the_error_is_small_and_below_that_of_the_linear_forecast() -> None:
    figures = score_forecasts(range(101, 107))
    mape = figures["forecast_mape"]
    assert mape["4"] <= 0.20 and mape["7"] <= 0.15 and mape["14"] <= 0.10
    assert figures["forecast_below_linear"]
