"""Test the growth of counters: resets, gaps, impossible growth, and means over points."""

from __future__ import annotations

import pytest

from telemetry.core.counters import MAX_GAP_SECONDS, CounterReading, Growth, growths, mean_rates


def readings(*values: float | None, every: float = 60.0) -> list[CounterReading]:
    return [CounterReading(place * every, value) for place, value in enumerate(values)]


def amounts(*values: float | None, every: float = 60.0) -> list[float]:
    return [each.amount for each in growths(readings(*values, every=every), 1000.0)]


def test_a_counter_that_falls_was_reset_and_does_not_count_from_zero() -> None:
    assert amounts(100, 400, 50, 80) == [300, 30]


def test_growth_beside_an_unknown_reading_is_unknown() -> None:
    assert amounts(100, None, 300, 400) == [100]
    assert amounts(None, None) == []


def test_growth_above_the_bound_is_unknown() -> None:
    assert amounts(0, 60_000, 120_001) == [60_000]


def test_growth_over_a_gap_of_readings_is_unknown() -> None:
    assert amounts(1, 2, every=MAX_GAP_SECONDS) == [1]
    assert amounts(1, 2, every=MAX_GAP_SECONDS + 1) == []


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_two_readings_of_one_time_give_no_growth(seconds: float) -> None:
    assert growths([CounterReading(10.0, 1), CounterReading(10.0 + seconds, 2)], 1e9) == []


def test_the_mean_of_a_point_is_none_where_nothing_is_known() -> None:
    known = [Growth(0, 60, 600), Growth(60, 120, 0), Growth(240, 300, 60)]
    assert mean_rates(known, [0, 120, 240], 120) == [5.0, None, 1.0]
