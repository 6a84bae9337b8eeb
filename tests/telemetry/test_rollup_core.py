"""Test how samples are summed: unmeasured time stays unknown, and each covered second counts once."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.core.rollup import (
    SAMPLE_REACH_SECONDS,
    UnitHold,
    UsageReading,
    UsageSums,
    energy_between,
    merge_finer_usage,
    merge_usage,
    roll_up_readings,
    would_lose_coverage,
)


def series(
    count: int, *, every: float = 10, first: float = 10, **reading: float | None
) -> list[UsageReading]:
    return [
        UsageReading(first + number * every, **({"utilisation": 50.0, "processes": 1} | reading))
        for number in range(count)
    ]  # type: ignore[arg-type]


@st.composite
def any_hour(draw: st.DrawFn) -> tuple[list[UsageReading], list[UnitHold]]:
    times = sorted(set(draw(st.lists(st.integers(-60, 400), max_size=40))))
    readings = [
        UsageReading(
            float(ts),
            draw(st.sampled_from([None, 0.0, 40.0, 100.0])),
            draw(st.sampled_from([None, 0.0, 10.0, 90.0])),
            draw(st.sampled_from([None, 0.0, 30.0])),
            processes=draw(st.sampled_from([None, 0, 1])),
        )
        for ts in times
    ]
    edges = sorted(set(draw(st.lists(st.integers(-100, 500), max_size=8))))
    held = [
        UnitHold(number + 1, low, high)
        for number, (low, high) in enumerate(zip(edges[::2], edges[1::2], strict=False))
    ]
    return readings, held


@given(any_hour())
def test_covered_time_is_at_most_the_held_time_and_has_at_most_one_kind(
    case: tuple[list[UsageReading], list[UnitHold]],
) -> None:
    readings, held = case
    uses = roll_up_readings(readings, held, 0, 300)
    assert math.isclose(sum(use.held_seconds for use in uses.values()), 300)
    for use in uses.values():
        assert use.covered_seconds <= use.held_seconds + 1e-6
        kinds = (use.busy_seconds or 0) + (use.idle_seconds or 0) + (use.empty_seconds or 0)
        assert kinds <= use.covered_seconds + 1e-6
        judged = (use.inefficient_seconds or 0) + (use.sm_unmeasured_seconds or 0)
        assert judged <= (use.busy_seconds or 0) + 1e-6


@given(any_hour())
def test_minutes_sum_to_their_hour(case: tuple[list[UsageReading], list[UnitHold]]) -> None:
    readings, held = case
    whole = roll_up_readings(readings, held, 0, 300)
    minutes = [roll_up_readings(readings, held, low, low + 60) for low in range(0, 300, 60)]
    for owner, use in whole.items():
        summed = merge_usage(minute[owner] for minute in minutes if owner in minute)
        assert math.isclose(summed.covered_seconds, use.covered_seconds, abs_tol=1e-6)
        assert math.isclose(summed.busy_seconds or 0, use.busy_seconds or 0, abs_tol=1e-6)
        assert summed.samples == use.samples
        assert summed.utilisation_max == use.utilisation_max


def test_a_gap_in_the_readings_is_uncovered_and_not_idle() -> None:
    readings = [*series(3), UsageReading(200.0, 50.0, processes=1)]
    use = roll_up_readings(readings, [UnitHold(1, 0, 300)], 0, 300)[1]
    assert use.covered_seconds == 30 + SAMPLE_REACH_SECONDS
    assert use.idle_seconds == 0
    assert use.busy_seconds == 60


def test_without_readings_every_measure_is_unknown() -> None:
    use = roll_up_readings([], [UnitHold(1, 0, 60)], 0, 60)[1]
    assert (use.held_seconds, use.covered_seconds, use.busy_seconds, use.utilisation_seconds) == (
        60,
        0,
        None,
        None,
    )


def test_sm_activity_makes_a_slice_busy_and_its_utilisation_stays_unknown() -> None:
    use = roll_up_readings(series(6, utilisation=None, sm_active=40.0), [UnitHold(1, 0, 60)], 0, 60)[1]
    assert (use.busy_seconds, use.utilisation_seconds, use.sm_active_seconds) == (60, None, 24)


def test_held_time_is_empty_without_a_process_and_idle_with_a_sleeping_process() -> None:
    assert (
        roll_up_readings(series(6, utilisation=0.0, processes=0), [UnitHold(1, 0, 60)], 0, 60)[
            1
        ].empty_seconds
        == 60
    )
    assert roll_up_readings(series(6, utilisation=0.0), [UnitHold(1, 0, 60)], 0, 60)[1].idle_seconds == 60


def minute_of(**reading: float | None) -> UsageSums:
    """Return the sums of a held minute in which every reading is the same."""
    return roll_up_readings(series(6, **reading), [UnitHold(1, 0, 60)], 0, 60)[1]


@pytest.mark.parametrize(
    ("utilisation", "processes", "kind"),
    [
        (5.0, 1, "busy_seconds"),
        (4.9, 1, "idle_seconds"),
        (4.9, None, "idle_seconds"),
        (4.9, 0, "empty_seconds"),
        (5.0, 0, "busy_seconds"),
    ],
)
def test_a_unit_is_busy_from_5_per_cent_on(utilisation: float, processes: int | None, kind: str) -> None:
    use = minute_of(utilisation=utilisation, processes=processes)
    sums = {name: getattr(use, name) for name in ("busy_seconds", "idle_seconds", "empty_seconds")}
    assert sums == {"busy_seconds": 0, "idle_seconds": 0, "empty_seconds": 0} | {kind: 60}


@pytest.mark.parametrize(
    ("sm_active", "tensor_active", "kind"),
    [
        (19.9, None, "inefficient"),
        (19.9, 9.9, "inefficient"),
        (19.9, 10.0, "productive"),
        (20.0, 0.0, "productive"),
        (None, None, "sm_unmeasured"),
        (None, 9.9, "sm_unmeasured"),
        (None, 10.0, "productive"),
    ],
)
def test_busy_time_is_judged_by_sm_and_tensor_activity(
    sm_active: float | None, tensor_active: float | None, kind: str
) -> None:
    use = minute_of(sm_active=sm_active, tensor_active=tensor_active)
    assert use.busy_seconds == 60
    assert (use.inefficient_seconds, use.sm_unmeasured_seconds) == (
        60 if kind == "inefficient" else 0,
        60 if kind == "sm_unmeasured" else 0,
    )


def test_a_reading_after_a_change_of_holder_covers_both_holders_by_their_seconds() -> None:
    uses = roll_up_readings(series(6), [UnitHold(1, 0, 25), UnitHold(2, 25, 60)], 0, 60)
    assert (uses[1].covered_seconds, uses[2].covered_seconds) == (25, 35)


def test_energy_is_unknown_if_the_counter_fell_or_grew_faster_than_the_power_limit_allows() -> None:
    assert energy_between(1_000, 4_000, 10, 700.0) == 3_000
    assert energy_between(4_000, 500, 10, 700.0) is None
    assert energy_between(0, 8_400_000, 10, 700.0) == 8_400_000  # 700 W x 10 s x 1.2
    assert energy_between(0, 8_400_001, 10, 700.0) is None


def test_a_fault_of_the_counter_counts_once_in_the_bucket_of_its_reading() -> None:
    readings = [UsageReading(50.0, 50.0, energy_mj=9_000), UsageReading(70.0, 50.0, energy_mj=10)]
    held = [UnitHold(1, 0, 55), UnitHold(2, 55, 120)]
    first, second = (roll_up_readings(readings, held, low, low + 60) for low in (0, 60))
    assert [use.energy_faults for use in (first[1], first[2], second[2])] == [None, None, 1]
    assert [use.energy_mj for use in (first[1], first[2], second[2])] == [None, None, None]


def test_a_merge_of_no_rollups_is_unknown() -> None:
    assert merge_usage([]) == UsageSums()


@given(any_hour())
def test_held_time_of_a_merged_bucket_is_the_overlap_of_the_allocation_with_it(
    case: tuple[list[UsageReading], list[UnitHold]],
) -> None:
    readings, held = case
    minutes = [roll_up_readings(readings, held, low, low + 60) for low in range(0, 300, 60)]
    # As in the database, a minute without any sample has no rollups.
    sampled = [minute for minute in minutes if any(use.samples for use in minute.values())]
    parts: dict[int | None, list[UsageSums]] = {}
    for minute in sampled:
        for owner, use in minute.items():
            parts.setdefault(owner, []).append(use)
    merged = merge_finer_usage(parts, held, 0, 300)
    for one in held:
        overlap = max(0.0, min(one.end, 300) - max(one.start, 0))
        assert (merged[one.allocation].held_seconds if one.allocation in merged else 0.0) == overlap
    assert all(use.covered_seconds <= use.held_seconds for use in merged.values())


@given(any_hour(), st.integers(0, 300))
def test_an_allocation_whose_end_was_moved_never_has_more_covered_than_held_time(
    case: tuple[list[UsageReading], list[UnitHold]], end: int
) -> None:
    readings, held = case
    before = roll_up_readings(readings, held, 0, 300)
    shorter = [UnitHold(one.allocation, one.start, min(one.end, end)) for one in held if one.start < end]
    merged = merge_finer_usage({owner: [use] for owner, use in before.items()}, shorter, 0, 300)
    for use in merged.values():
        assert use.covered_seconds <= use.held_seconds
        assert (use.busy_seconds or 0) + (use.idle_seconds or 0) <= use.covered_seconds + 1e-6


def test_coverage_falls_only_by_more_than_the_error_of_sums_of_floats() -> None:
    assert would_lose_coverage(28_570.0, 30.0)
    assert not would_lose_coverage(0.1 + 0.2, 0.3)
    assert not would_lose_coverage(30.0, 28_570.0)
