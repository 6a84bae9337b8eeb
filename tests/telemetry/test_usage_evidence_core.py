"""Test how the measured use of an hour is divided among the charge lines of an allocation."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from telemetry.core.usage_evidence import HeldUsage, MeasuredUse, measured_use, needs_minutes


@st.composite
def any_hold(draw: st.DrawFn) -> tuple[dict[int, HeldUsage], dict[int, HeldUsage], int, int]:
    """Return the hours, the minutes, the start and the end of a hold of up to three hours."""
    start = draw(st.integers(0, 3600))
    end = start + draw(st.integers(1, 7200))
    minutes: dict[int, HeldUsage] = {}
    for at in range(start - start % 60, end, 60):
        held = min(end, at + 60) - max(start, at)
        covered = held * draw(st.sampled_from([0.0, 0.5, 1.0]))
        used = draw(st.sampled_from([None, 0.0, covered / 2, covered]))
        if draw(st.booleans()):
            minutes[at] = HeldUsage(held, covered, used)
    hours: dict[int, HeldUsage] = {}
    for hour in range(0, end, 3600):
        held = min(end, hour + 3600) - max(start, hour)
        inside = [use for at, use in minutes.items() if hour <= at < hour + 3600]
        known = [use.used for use in inside if use.used is not None]
        if held > 0:
            hours[hour] = HeldUsage(held, sum(use.covered for use in inside), sum(known) if known else None)
    return hours, minutes, start, end


@given(any_hold(), st.lists(st.integers(0, 10_800), max_size=6), st.booleans())
def test_the_lines_of_an_allocation_share_its_use_without_loss(
    hold: tuple[dict[int, HeldUsage], dict[int, HeldUsage], int, int], cuts: list[int], minutes_kept: bool
) -> None:
    hours, minutes, start, end = hold
    edges = [start, *sorted({cut for cut in cuts if start < cut < end}), end]
    parts = [
        measured_use(low, high, hours, minutes if minutes_kept else {})
        for low, high in zip(edges, edges[1:], strict=False)
    ]
    for part, low, high in zip(parts, edges, edges[1:], strict=False):
        assert 0 <= (part.used or 0) <= part.covered + 1e-6 <= high - low + 1e-5
    covered = sum(use.covered for use in hours.values())
    used = sum(use.used or 0 for use in hours.values())
    assert math.isclose(sum(part.covered for part in parts), covered, abs_tol=1e-5)
    assert math.isclose(sum(part.used or 0 for part in parts), used, abs_tol=1e-5)


def test_a_line_takes_the_minutes_of_its_own_part_of_the_hour() -> None:
    hours = {0: HeldUsage(3600, 120, 60)}
    minutes = {0: HeldUsage(60, 60, 60), 1800: HeldUsage(60, 60, 0)}
    assert measured_use(0, 1800, hours, minutes) == MeasuredUse(60, 60)
    assert measured_use(1800, 3600, hours, minutes) == MeasuredUse(0, 60)


def test_after_the_deletion_of_its_minutes_an_hour_is_divided_by_time() -> None:
    hours = {0: HeldUsage(3600, 3600, 1800)}
    late_minute = {1800: HeldUsage(60, 30, 30)}
    assert measured_use(0, 1800, hours, late_minute) == MeasuredUse(900, 1800)
    assert measured_use(1800, 3600, hours, late_minute) == MeasuredUse(900, 1800)


def test_a_line_that_holds_its_whole_hour_needs_no_minutes() -> None:
    assert not needs_minutes(0, 3600, HeldUsage(3600, 0, None))
    assert not needs_minutes(599, 1200, HeldUsage(601.4, 0, None))
    assert needs_minutes(0, 1800, HeldUsage(3600, 0, None))
    assert needs_minutes(0, 3600, None)


def test_use_without_rollups_is_unknown() -> None:
    assert measured_use(0, 3600, {}, {}) == MeasuredUse(None, 0)
