"""Test that a long series of samples becomes few points that keep its extremes, its ends and its gaps."""

from __future__ import annotations

import numpy as np
import pytest

from telemetry.reads.utilisation.raw_series import MAX_KEPT, MAX_POINTS, ReducedSeries, thinned


def test_a_long_series_keeps_its_ends_its_extremes_and_at_most_600_points() -> None:
    times = np.arange(50_000, dtype=float) * 10
    values = np.sin(times / 5000) * 10 + 50
    values[12_345], values[40_000] = 100.0, 0.0
    points = thinned(times, values)
    assert len(points) == MAX_POINTS
    assert (points[0][0], points[-1][0]) == (times[0], times[-1])
    shown = [value for _, value in points if value is not None]
    assert (max(shown), min(shown)) == (100.0, 0.0)


def test_every_gap_has_a_point_without_a_value() -> None:
    times = np.arange(3000, dtype=float) * 10
    values = np.full(3000, 50.0)
    values[500:700] = np.nan  # unknown
    known = (np.arange(3000) < 1000) | (np.arange(3000) >= 1200)  # not sampled
    points = thinned(times[known], values[known])
    gaps = [at for at, value in points if value is None]
    assert [5000 < at < 7000 for at in gaps] == [True, False]
    assert [10_000 < at < 12_000 for at in gaps] == [False, True]
    assert len(points) - len(gaps) <= MAX_POINTS


def test_a_short_series_is_not_changed_and_an_unknown_one_is_empty() -> None:
    times = np.array([0.0, 10.0, 20.0])
    assert thinned(times, np.array([1.0, 2.0, 3.0])) == [(0.0, 1.0), (10.0, 2.0), (20.0, 3.0)]
    assert thinned(times, np.full(3, np.nan)) == []


def test_a_series_that_is_added_day_by_day_stays_small_and_keeps_ends_extremes_and_gaps() -> None:
    day, days = 86_400.0, 30
    series = ReducedSeries(0.0, days * day)
    most = 0
    for number in range(days):
        if number == 20:
            continue  # no samples
        times = number * day + np.arange(17_280, dtype=float) * 5
        values = np.sin(times / 50_000) * 10 + 50
        if number == 3:
            values[777] = 0.0
        if number == 11:
            values[4_000] = 100.0
        series.add(times, values)
        most = max(most, series.kept)
    assert most <= MAX_KEPT
    points = series.points()
    shown = [(at, value) for at, value in points if value is not None]
    assert len(shown) <= MAX_POINTS
    assert (shown[0][0], shown[-1][0]) == (0.0, days * day - 5)
    assert (3 * day + 777 * 5, 0.0) in shown and (11 * day + 4_000 * 5, 100.0) in shown
    [gap] = [at for at, value in points if value is None]
    assert 20 * day < gap < 21 * day
    curve = [value for _, value in shown if value not in (0.0, 100.0)]
    assert (min(curve), max(curve)) == (pytest.approx(40, abs=0.1), pytest.approx(60, abs=0.1))


def test_a_short_series_is_the_same_if_it_is_added_in_parts() -> None:
    times = np.arange(1_000, dtype=float) * 5
    values = np.cos(times)
    values[100:200] = np.nan
    series = ReducedSeries(0.0, 5_000.0)
    for part in np.split(np.arange(1_000), [3, 150, 400, 400]):
        series.add(times[part], values[part])
    assert series.points() == thinned(times, values)
