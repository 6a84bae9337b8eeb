"""Test ranges of expected starts, computed from the outcomes of earlier estimates."""

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


def test_simulated_outcomes_are_counted_separately() -> None:
    outcomes = [EstimateOutcome(600, None, 1200, started=True, simulated=True)] * 3 + [
        EstimateOutcome(600, None, 600, started=True)
    ]
    assert (estimate_accuracy(outcomes).started_count, estimate_accuracy(outcomes).simulated) == (4, 3)


def test_the_upper_end_is_the_85th_percentile_of_past_errors() -> None:
    errors = [n / 10 for n in range(1, 101)]  # 0.1 to 10.0
    assert start_range(0, HOUR, errors) == StartRange(HOUR, HOUR, 8 * HOUR + HOUR // 2 + 1)
    assert start_range(0, HOUR, [0.5] * 50 + [2.0] * 50) == StartRange(HOUR // 2, HOUR, 2 * HOUR + 1)


def test_few_outcomes_give_a_wide_range() -> None:
    narrow = [1.0] * (MIN_OUTCOMES - 1)
    assert start_range(0, HOUR, narrow) == StartRange(HOUR // 4, HOUR, 3 * HOUR + 1)


def test_the_expected_start_is_always_in_its_range() -> None:
    for errors in ([0.01] * 50, [9.0] * 50):
        ranged = start_range(1000, 1000 + HOUR, errors)
        assert 1000 <= ranged.earliest <= ranged.expected <= ranged.latest


def test_waits_under_a_minute_count_as_a_minute() -> None:
    assert wait_ratio(0, 3) == 1.0
    assert wait_ratio(1, 600) == 10.0


def test_the_history_counts_started_and_overdue_workloads() -> None:
    history = EstimateHistory()
    history.note_estimate(1, 0, 1000)
    history.note_estimate(2, 0, 1000)
    history.note_estimate(3, 0, 9000)
    history.started(1, 500)
    assert history.errors(900, 1000) == [0.5]
    assert history.errors(2000, 1000) == [0.5, 2.0]
    history.started(2, 3000)
    assert history.errors(3000, 1000) == [0.5, 3.0]
    history.started(77, 3000)  # it has no estimate
    assert history.errors(3000, 1000) == [0.5, 3.0]


def test_the_history_forgets_the_oldest_outcomes() -> None:
    history = EstimateHistory()
    for workload in range(MAX_OUTCOMES + 10):
        history.note_estimate(workload, 0, 100)
        history.started(workload, 100 if workload >= 10 else 1000)
    assert history.errors(100, 100) == [1.0] * MAX_OUTCOMES


def test_estimates_and_actual_waits_give_the_accuracy() -> None:
    accuracy = estimate_accuracy(
        [
            EstimateOutcome(600, 1200, 900, started=True),  # 5 min late, in its range
            EstimateOutcome(600, 1200, 3000, started=True),  # 40 min late, later than its range
            EstimateOutcome(600, None, 600, started=True),  # estimated without a range
            EstimateOutcome(600, 1200, 700, started=False),  # still waits, late, in its range
            EstimateOutcome(600, 1200, 5000, started=False),  # still waits, later than its range
            EstimateOutcome(
                600, 1200, 100, started=False
            ),  # withdrawn before the expected start: does not count
        ]
    )
    assert (accuracy.started_count, accuracy.median_error) == (3, 300)
    assert (accuracy.with_range, accuracy.started_in_range_count) == (3, 1)
    assert len(accuracy.errors) == 5


def test_too_few_outcomes_give_no_range() -> None:
    few = estimate_accuracy([EstimateOutcome(600, None, 600, started=True)] * (MIN_OUTCOMES - 1))
    assert few.range(0, HOUR) is None and EstimateAccuracy().range(0, HOUR) is None
    enough = estimate_accuracy([EstimateOutcome(600, None, 1200, started=True)] * MIN_OUTCOMES)
    assert enough.range(0, HOUR) == StartRange(HOUR, HOUR, 2 * HOUR + 1)


def test_a_range_uses_the_errors_of_estimates_of_similar_length() -> None:
    short, long = [(600, 5.0)] * MIN_OUTCOMES, [(20 * HOUR, 1.1)] * MIN_OUTCOMES
    assert ratios_of_similar_waits([*short, *long], 1200) == [5.0] * MIN_OUTCOMES
    assert ratios_of_similar_waits([*short, *long], 200) == [5.0] * MIN_OUTCOMES
    assert ratios_of_similar_waits([*short, *long], 60 * HOUR) == [1.1] * MIN_OUTCOMES
    assert (
        ratios_of_similar_waits([*short, *long], 3 * HOUR) == [5.0] * MIN_OUTCOMES + [1.1] * MIN_OUTCOMES
    )  # no similar estimate
    assert (
        ratios_of_similar_waits([*short[:-1], *long], 1200)
        == [5.0] * (MIN_OUTCOMES - 1) + [1.1] * MIN_OUTCOMES
    )  # too few similar estimates
