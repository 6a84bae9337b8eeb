"""Expected starts as ranges, from the record of those told before."""

from __future__ import annotations

from scheduler.core.explain.start_ranges import (
    MAX_OUTCOMES,
    MIN_OUTCOMES,
    EstimateAccuracy,
    EstimateHistory,
    EstimateOutcome,
    StartRange,
    estimate_accuracy,
    ratios_of_similar_waits,
    start_range,
    wait_ratio,
)

HOUR = 3600


def test_what_a_demo_simulated_is_counted_apart() -> None:
    told = [EstimateOutcome(600, None, 1200, started=True, simulated=True)] * 3 + [
        EstimateOutcome(600, None, 600, started=True)
    ]
    assert (estimate_accuracy(told).started_count, estimate_accuracy(told).simulated) == (4, 3)


def test_the_upper_end_is_the_85th_percentile_of_past_errors() -> None:
    errors = [n / 10 for n in range(1, 101)]  # 0.1 to 10.0
    assert start_range(0, HOUR, errors) == StartRange(HOUR, HOUR, 8 * HOUR + HOUR // 2 + 1)
    assert start_range(0, HOUR, [0.5] * 50 + [2.0] * 50) == StartRange(HOUR // 2, HOUR, 2 * HOUR + 1)


def test_few_records_prove_nothing_and_the_range_is_wide() -> None:
    narrow = [1.0] * (MIN_OUTCOMES - 1)
    assert start_range(0, HOUR, narrow) == StartRange(HOUR // 4, HOUR, 3 * HOUR + 1)


def test_the_expected_start_is_always_in_its_range() -> None:
    for errors in ([0.01] * 50, [9.0] * 50):
        ranged = start_range(1000, 1000 + HOUR, errors)
        assert 1000 <= ranged.earliest <= ranged.expected <= ranged.latest


def test_waits_under_a_minute_count_as_a_minute() -> None:
    assert wait_ratio(0, 3) == 1.0
    assert wait_ratio(1, 600) == 10.0


def test_the_record_counts_who_started_and_who_is_overdue() -> None:
    record = EstimateHistory()
    record.note_estimate(1, 0, 1000)
    record.note_estimate(2, 0, 1000)
    record.note_estimate(3, 0, 9000)
    record.started(1, 500)
    assert record.errors(900, 1000) == [0.5]
    assert record.errors(2000, 1000) == [0.5, 2.0]
    record.started(2, 3000)
    assert record.errors(3000, 1000) == [0.5, 3.0]
    record.started(77, 3000)  # nobody asked about it
    assert record.errors(3000, 1000) == [0.5, 3.0]


def test_the_record_forgets_the_oldest() -> None:
    record = EstimateHistory()
    for workload in range(MAX_OUTCOMES + 10):
        record.note_estimate(workload, 0, 100)
        record.started(workload, 100 if workload >= 10 else 1000)
    assert record.errors(100, 100) == [1.0] * MAX_OUTCOMES


def test_what_was_told_and_what_came_of_it_makes_the_record() -> None:
    kept = estimate_accuracy(
        [
            EstimateOutcome(600, 1200, 900, started=True),  # 5 min late, in its range
            EstimateOutcome(600, 1200, 3000, started=True),  # 40 min late, later than its range
            EstimateOutcome(600, None, 600, started=True),  # told without a range
            EstimateOutcome(
                600, 1200, 700, started=False
            ),  # left, or waits: over its time, its range is open
            EstimateOutcome(600, 1200, 5000, started=False),  # out of its range whatever comes
            EstimateOutcome(600, 1200, 100, started=False),  # left before its time: proves nothing
        ]
    )
    assert (kept.started_count, kept.median_error) == (3, 300)
    assert (kept.with_range, kept.started_in_range_count) == (3, 1)
    assert len(kept.errors) == 5


def test_too_few_records_give_no_range() -> None:
    few = estimate_accuracy([EstimateOutcome(600, None, 600, started=True)] * (MIN_OUTCOMES - 1))
    assert few.range(0, HOUR) is None and EstimateAccuracy().range(0, HOUR) is None
    enough = estimate_accuracy([EstimateOutcome(600, None, 1200, started=True)] * MIN_OUTCOMES)
    assert enough.range(0, HOUR) == StartRange(HOUR, HOUR, 2 * HOUR + 1)


def test_waits_told_about_as_long_are_wrong_alike() -> None:
    short, long = [(600, 5.0)] * MIN_OUTCOMES, [(20 * HOUR, 1.1)] * MIN_OUTCOMES
    assert ratios_of_similar_waits([*short, *long], 1200) == [5.0] * MIN_OUTCOMES
    assert ratios_of_similar_waits([*short, *long], 200) == [5.0] * MIN_OUTCOMES
    assert ratios_of_similar_waits([*short, *long], 60 * HOUR) == [1.1] * MIN_OUTCOMES
    assert (
        ratios_of_similar_waits([*short, *long], 3 * HOUR) == [5.0] * MIN_OUTCOMES + [1.1] * MIN_OUTCOMES
    )  # nobody was told that
    assert (
        ratios_of_similar_waits([*short[:-1], *long], 1200)
        == [5.0] * (MIN_OUTCOMES - 1) + [1.1] * MIN_OUTCOMES
    )  # too few
