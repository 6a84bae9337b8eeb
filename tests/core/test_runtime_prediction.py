"""Test the predicted runtime of a job, from jobs that finished before it."""

from __future__ import annotations

from scheduler.core.model.snapshot import Ask, QueuedWorkload
from scheduler.core.queue.runtime_prediction import (
    MAX_SIMILAR_JOBS,
    RuntimeHistory,
    predicted_seconds,
    size_class,
)


def queued(limit: int, user: int = 1, team: int = 1, units: int = 1, hosts: int = 1) -> QueuedWorkload:
    return QueuedWorkload(1, team, 1, user, 1, Ask(units, hosts), 0, limit, limit)


def history_of(*runs: tuple[QueuedWorkload, int]) -> RuntimeHistory:
    history = RuntimeHistory()
    for row, runtime in runs:
        history.finished(row, runtime)
    return history


def test_without_a_history_the_prediction_is_the_limit() -> None:
    assert RuntimeHistory().predict(queued(3600)) == 3600


def test_the_prediction_is_the_median_of_five_similar_jobs_of_the_user() -> None:
    past = [(queued(3600), seconds) for seconds in (100, 200, 300, 400, 500)]
    assert history_of(*past).predict(queued(3600)) == 300


def test_with_fewer_jobs_of_the_user_the_jobs_of_the_team_count() -> None:
    past = [(queued(3600, user=2), seconds) for seconds in (100, 200, 300, 400)]
    assert history_of(*past, (queued(3600), 900)).predict(queued(3600)) == 300


def test_without_similar_jobs_the_prediction_is_the_usual_share_of_the_limit() -> None:
    past = [(queued(1000, user=9, team=9), 250)] * 5
    assert history_of(*past).predict(queued(3600)) == 900


def test_jobs_of_another_size_or_with_a_limit_that_is_not_similar_do_not_count() -> None:
    far = [(queued(36_000), 7)] * 5
    large = [(queued(3600, units=2), 7)] * 5
    # These jobs are not similar to the predicted job. So the prediction is the median of (runtime / limit)
    # times the limit of the predicted job. The ratios are 7/36,000 and 7/3,600, five times each. Their median
    # times 3,600 is 3.85.
    assert history_of(*far, *large).predict(queued(3600)) == 4
    assert history_of(*[(queued(10_800), 50)] * 5).predict(queued(3600)) == 50
    assert size_class(5) == size_class(7) == (4, 8)


def test_a_prediction_is_never_above_the_limit_nor_below_a_second() -> None:
    assert history_of(*[(queued(3600), 3000)] * 5).predict(queued(1800)) == 1800
    assert predicted_seconds((), (), [0.0] * 5, 60) == 1


def test_only_the_latest_jobs_count() -> None:
    past = [(queued(3600), 3000)] * MAX_SIMILAR_JOBS + [(queued(3600), 60)] * MAX_SIMILAR_JOBS
    assert history_of(*past).predict(queued(3600)) == 60
