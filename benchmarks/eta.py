"""Measure how well the estimated starts of waiting jobs agree with their real starts.

    ./run bench eta --jobs philly.csv --nodes 64

The planner replays the jobs of ``bench philly`` with the same runtime limits. One in ``--every`` jobs is
sampled at random (``--seed``). When a sampled job is submitted and has to wait, its estimated start is
recorded, and later compared with its real start. Jobs that start at once are not counted.

An estimate is a range of start times. The end of the range comes from the errors of earlier estimates
(``scheduler/core/explain/start_ranges.py``).
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median
from typing import Any

from benchmarks.philly import read, with_limits
from benchmarks.traces.queue_baselines import percentile
from benchmarks.traces.trace_replay import TraceReplay, check_jobs_fit, integer_argument, trace_file
from scheduler.core.explain.start_ranges import EstimateHistory, StartRange, start_range
from scheduler.core.model.plan import Refusal
from scheduler.core.model.snapshot import QueuedWorkload

SERVICES: tuple[str, ...] = ()


def main(argv: list[str]) -> dict[str, Any]:
    """Return the errors of the estimates in seconds, for the sampled jobs that had to wait.

    ``late_share`` is the share of these jobs that started after the end of their estimated range.
    """
    parser = argparse.ArgumentParser(prog="eta", description=__doc__)
    parser.add_argument("--jobs", metavar="FILE")
    parser.add_argument("--nodes", type=integer_argument(1, 10_000), default=64)
    parser.add_argument("--seed", type=integer_argument(0), default=42)
    parser.add_argument("--first", type=integer_argument(1), metavar="N", help="the first N jobs only")
    parser.add_argument("--every", type=integer_argument(1), default=20, help="sample one in EVERY jobs")
    options = parser.parse_args(argv)
    began = time.perf_counter()
    jobs = with_limits(read(trace_file(options.jobs, "philly", "philly.csv"))[: options.first], options.seed)
    check_jobs_fit(jobs, options.nodes)
    estimates = EstimateSample(options.every, options.seed)
    replay = TraceReplay(
        jobs, options.nodes, estimates.record_estimate, estimates.is_sampled, estimates.started
    )
    started = replay.run()
    results = [(started[workload], estimate) for workload, estimate in estimates.ranges.items()]
    errors = [abs(start - estimate.expected) for start, estimate in results]
    return {
        "nodes": options.nodes,
        "jobs": len(jobs),
        "asked": estimates.questions,
        "queued": len(results),
        "without_expected_start": estimates.unknown,
        "median_error": median(errors) if errors else None,
        "p90_error": percentile(errors, 0.9) if errors else None,
        "late_share": share([start > estimate.latest for start, estimate in results]),
        "later_than_expected": share([start > estimate.expected for start, estimate in results]),
        "earlier_than_range": share([start < estimate.earliest for start, estimate in results]),
        "wall": round(time.perf_counter() - began, 1),
    }


def share(facts: list[bool]) -> float | None:
    """Return the share of True values, rounded to 4 digits.

    Return None for an empty list.
    """
    return round(sum(facts) / len(facts), 4) if facts else None


class EstimateSample:
    """The sampled jobs and the estimates that they received."""

    def __init__(self, every: int, seed: int) -> None:
        self.every, self.rng = every, random.Random(seed)
        self.ranges: dict[int, StartRange] = {}
        self.record = EstimateHistory()
        self.questions = self.unknown = 0

    def is_sampled(self, queued: QueuedWorkload) -> bool:
        """Return True at random for one in ``every`` jobs."""
        sampled = self.rng.random() * self.every < 1
        self.questions += sampled
        return sampled

    def record_estimate(self, now: int, refusal: Refusal) -> None:
        """Record the estimate that a sampled job gets if it has to wait when it is submitted."""
        if refusal.expected_start is None:
            self.unknown += 1
            return
        errors = self.record.errors(now, refusal.expected_start - now)
        self.ranges[refusal.workload] = start_range(now, refusal.expected_start, errors)
        self.record.note_estimate(refusal.workload, now, refusal.expected_start)

    def started(self, workload: int, now: int) -> None:
        """Record the start of a job. Later estimates use it."""
        self.record.started(workload, now)
