"""Test that a long series of samples becomes few points that keep its extremes, its ends and its gaps."""

from __future__ import annotations

import numpy as np

from telemetry.reads.utilisation.raw_series import MAX_POINTS, thinned


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
