"""Test the baseline queue orders, on small traces with results computed by hand."""

from __future__ import annotations

import pytest

from benchmarks.traces.queue_baselines import (
    QueueOrder,
    TraceJob,
    p99_by_size,
    percentile,
    simulate_starts,
    wait_figures,
)


def job(number: int, at: int, nodes: int, per_node: int, runtime: int, limit: int | None = None) -> TraceJob:
    return TraceJob(number, at, nodes, per_node, runtime, limit or runtime)


# Two nodes of 4 GPUs. Job 2 needs both nodes; job 3 is short, job 4 long and small.
BLOCKED = [job(1, 0, 1, 4, 100), job(2, 1, 2, 4, 50), job(3, 2, 1, 4, 20), job(4, 3, 1, 2, 200)]


def test_strict_fifo_stops_at_the_first_job_that_does_not_fit() -> None:
    assert simulate_starts(BLOCKED, 2, QueueOrder.FIFO, 4) == {1: 0, 2: 100, 3: 150, 4: 150}


def test_strict_sjf_stops_at_the_shortest_job_if_it_does_not_fit() -> None:
    assert simulate_starts(BLOCKED, 2, QueueOrder.SJF, 4) == {1: 0, 3: 2, 2: 100, 4: 150}


def test_easy_backfills_only_jobs_that_end_before_the_first_job_can_start() -> None:
    assert simulate_starts(BLOCKED, 2, QueueOrder.EASY, 4) == {1: 0, 3: 2, 2: 100, 4: 150}


def test_easy_uses_limits_instead_of_runtimes() -> None:
    """Refuse to backfill job 3, because its time limit exceeds the remaining time of job 1.

    With its actual runtime, job 3 would end in time.
    """
    jobs = [*BLOCKED[:2], job(3, 2, 1, 4, 20, limit=99), BLOCKED[3]]
    assert simulate_starts(jobs, 2, QueueOrder.EASY, 4) == {1: 0, 2: 100, 3: 150, 4: 150}


def test_easy_backfills_long_jobs_on_nodes_that_the_first_job_does_not_need() -> None:
    """Backfill the long job 4 on the two free GPUs of node 1.

    Job 3 is the first in the queue and does not need these GPUs: it starts on node 0 at time 100. No GPU
    remains for job 5, so job 5 waits.
    """
    jobs = [
        job(1, 0, 1, 4, 100),
        job(2, 0, 1, 2, 1000),
        job(3, 1, 1, 4, 10),
        job(4, 2, 1, 2, 500),
        job(5, 3, 1, 1, 500),
    ]
    assert simulate_starts(jobs, 2, QueueOrder.EASY, 4) == {1: 0, 2: 0, 3: 100, 4: 2, 5: 110}


def test_easy_keeps_whole_nodes_for_a_gang() -> None:
    """Keep both nodes for job 3, a gang that needs two whole nodes.

    When job 1 ends, enough GPUs are free in total, but not on each node. If the order counted only GPUs, it
    would backfill job 4 at time 3 and delay the gang.
    """
    jobs = [
        job(1, 0, 1, 2, 100),
        job(2, 0, 1, 3, 50),
        job(3, 2, 2, 4, 10),
        job(4, 3, 1, 1, 500),
    ]
    assert simulate_starts(jobs, 2, QueueOrder.EASY, 4) == {1: 0, 2: 0, 3: 100, 4: 110}


def test_a_job_is_placed_on_the_node_with_the_fewest_free_gpus() -> None:
    """Place job 3 on the node of job 1, so that a whole node is free for job 4."""
    jobs = [job(1, 0, 1, 2, 100), job(2, 1, 1, 1, 100), job(3, 2, 1, 1, 100), job(4, 3, 1, 4, 100)]
    assert simulate_starts(jobs, 2, QueueOrder.FIFO, 4)[4] == 3


def test_a_job_that_ends_frees_its_gpus_before_jobs_start_in_the_same_second() -> None:
    assert simulate_starts([job(1, 0, 1, 4, 10), job(2, 10, 1, 4, 5)], 1, QueueOrder.FIFO, 4) == {1: 0, 2: 10}


def test_a_job_that_does_not_fit_on_the_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="1 jobs do not fit on 1 nodes of 4 GPUs; the first is job 7"):
        simulate_starts([job(7, 0, 2, 4, 10)], 1, QueueOrder.EASY, 4)


def test_wait_figures_are_computed_over_all_jobs() -> None:
    started = simulate_starts(BLOCKED, 2, QueueOrder.FIFO, 4)
    assert wait_figures(BLOCKED, started) == {
        "mean_jct": 191.0,
        "mean_queue": 98.5,
        "p99_queue": 148,
        "max_queue": 148,
    }
    assert p99_by_size(BLOCKED, started) == {"2-8": 148}


def test_a_percentile_is_the_nearest_rank() -> None:
    assert [percentile(range(1, 101), share) for share in (0.5, 0.9, 0.99, 1)] == [50, 90, 99, 100]
    assert percentile([], 0.99) == 0
