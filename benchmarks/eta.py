"""How good is what people are told: expected starts at submission against what happened, on the Philly trace.

    ./run bench eta --jobs philly.csv --nodes 64

The jobs and limits of ``bench philly`` run through the engine. Of one in ``--every`` jobs, drawn by ``--seed``, the plan
is explained as it is for people, and what it says is kept beside the start. Those that start at once are not counted.
The range's upper end comes from the record of those asked before (``scheduler/core/explain/start_ranges.py``).
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
    """Errors in seconds of those that queue; ``late_share`` of them started after the upper end of their range."""
    options = argparse.ArgumentParser(prog="eta", description=__doc__)
    options.add_argument("--jobs", metavar="FILE")
    options.add_argument("--nodes", type=integer_argument(1, 10_000), default=64)
    options.add_argument("--seed", type=integer_argument(0), default=42)
    options.add_argument("--first", type=integer_argument(1), metavar="N", help="the first N jobs only")
    options.add_argument(
        "--every", type=integer_argument(1), default=20, help="ask about one in so many jobs"
    )
    given = options.parse_args(argv)
    began = time.perf_counter()
    jobs = with_limits(read(trace_file(given.jobs, "philly", "philly.csv"))[: given.first], given.seed)
    check_jobs_fit(jobs, given.nodes)
    asked = AskedEstimates(given.every, given.seed)
    replay = TraceReplay(jobs, given.nodes, asked.said, asked.is_curious, asked.started)
    started = replay.run()
    told = [(started[workload], ranged) for workload, ranged in asked.ranges.items()]
    errors = [abs(start - ranged.expected) for start, ranged in told]
    return {
        "nodes": given.nodes,
        "jobs": len(jobs),
        "asked": asked.questions,
        "queued": len(told),
        "without_expected_start": asked.unknown,
        "median_error": median(errors) if errors else None,
        "p90_error": percentile(errors, 0.9) if errors else None,
        "late_share": share([start > ranged.latest for start, ranged in told]),
        "later_than_expected": share([start > ranged.expected for start, ranged in told]),
        "earlier_than_range": share([start < ranged.earliest for start, ranged in told]),
        "wall": round(time.perf_counter() - began, 1),
    }


def share(facts: list[bool]) -> float | None:
    return round(sum(facts) / len(facts), 4) if facts else None


class AskedEstimates:
    """Whom the bench asks about, and what they were told."""

    def __init__(self, every: int, seed: int) -> None:
        self.every, self.dice = every, random.Random(seed)
        self.ranges: dict[int, StartRange] = {}
        self.record = EstimateHistory()
        self.questions = self.unknown = 0

    def is_curious(self, queued: QueuedWorkload) -> bool:
        """One in ``every``."""
        chosen = self.dice.random() * self.every < 1
        self.questions += chosen
        return chosen

    def said(self, now: int, refusal: Refusal) -> None:
        """What a job that has to wait is told when it is submitted."""
        if refusal.expected_start is None:
            self.unknown += 1
            return
        errors = self.record.errors(now, refusal.expected_start - now)
        self.ranges[refusal.workload] = start_range(now, refusal.expected_start, errors)
        self.record.note_estimate(refusal.workload, now, refusal.expected_start)

    def started(self, workload: int, now: int) -> None:
        """A job started."""
        self.record.started(workload, now)
