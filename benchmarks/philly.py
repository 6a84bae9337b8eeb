"""Replay Microsoft Philly (October and November 2017) in simulated time with FIFO, EASY, and our order.

    ./run bench philly --jobs philly.csv --nodes 64

68,510 jobs run on ``--nodes`` nodes of 8 GPUs; a job of more than 8 GPUs uses several nodes with equal
parts. ``fifo`` is strict and ``easy`` is node-exact; both know the runtimes beforehand. ``easy_limits`` and
``ours_limits`` know only limits: each runtime times a log-uniform factor between 1 and 10, from ``--seed``.
Our order runs through the planner.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.traces.queue_baselines import QueueOrder, TraceJob, p99_by_size, simulate_starts, wait_figures
from benchmarks.traces.trace_replay import TraceReplay, check_jobs_fit, integer_argument, trace_file

SERVICES: tuple[str, ...] = ()

FROM, TO = "2017-10-01", "2017-12-01"
GPUS_PER_NODE = 8
LIMIT_FACTOR = 10
WAYS = ("fifo", "easy", "easy_limits", "ours_limits")


def main(argv: list[str]) -> dict[str, Any]:
    """Return mean completion and waits in seconds for each order; ``wall`` is the time of the run (s)."""
    parser = argparse.ArgumentParser(prog="philly", description=__doc__)
    parser.add_argument("--jobs", metavar="FILE")
    parser.add_argument("--nodes", type=integer_argument(1, 10_000), default=64)
    parser.add_argument("--seed", type=integer_argument(0), default=42)
    parser.add_argument("--first", type=integer_argument(1), metavar="N", help="the first N jobs only")
    parser.add_argument(
        "--only", choices=WAYS, nargs="+", default=WAYS, help="orders to replay; all by default"
    )
    options = parser.parse_args(argv)
    began = time.perf_counter()
    jobs_with_runtimes = read(trace_file(options.jobs, "philly", "philly.csv"))[: options.first]
    check_jobs_fit(jobs_with_runtimes, options.nodes)
    jobs_with_limits = with_limits(jobs_with_runtimes, options.seed)
    figures: dict[str, Any] = {"nodes": options.nodes, "jobs": len(jobs_with_runtimes), "seed": options.seed}
    for order_name in options.only:
        jobs = jobs_with_limits if order_name.endswith("_limits") else jobs_with_runtimes
        if order_name == "ours_limits":
            started = TraceReplay(jobs, options.nodes).run()
        else:
            started = simulate_starts(
                jobs, options.nodes, QueueOrder(order_name.removesuffix("_limits")), GPUS_PER_NODE
            )
        figures[order_name] = {**wait_figures(jobs, started), "p99_by_size": p99_by_size(jobs, started)}
    return {**figures, "wall": round(time.perf_counter() - began, 1)}


def read(path: Path) -> list[TraceJob]:
    """Return the jobs of both months by submission. Limits are the runtimes, teams the virtual clusters."""
    jobs = []
    teams: dict[str, int] = {}
    with path.open(newline="") as lines:
        rows = csv.DictReader(lines)
        missing = {"timestamp", "duration", "num_gpus", "cluster"} - set(rows.fieldnames or ())
        if missing:
            raise SystemExit(f"gpupool: {path} has no column {', '.join(sorted(missing))}")
        for row in rows:
            if FROM <= (row["timestamp"] or "") < TO:
                try:
                    jobs.append(_job(row, teams.setdefault(row["cluster"], len(teams) + 1)))
                except ValueError as error:
                    raise SystemExit(f"gpupool: {path}, line {rows.line_num}: {error}") from error
    jobs.sort(key=lambda job: job.submitted)
    return [replace(job, id=number) for number, job in enumerate(jobs, 1)]


def _job(row: dict[str, str], team: int) -> TraceJob:
    gpus = int(row["num_gpus"])
    if gpus < 1:
        raise ValueError(f"num_gpus is {gpus}; allowed: 1 or more")
    nodes = -(-gpus // GPUS_PER_NODE)
    runtime = max(1, round(float(row["duration"])))
    submitted = int(datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp())
    return TraceJob(0, submitted, nodes, -(-gpus // nodes), runtime, runtime, team, team)


def with_limits(jobs: Sequence[TraceJob], seed: int) -> list[TraceJob]:
    """Return the jobs with simulated limits: the runtime times a log-uniform factor from 1 to 10."""
    rng = random.Random(seed)
    return [replace(job, limit=max(1, round(job.runtime * LIMIT_FACTOR ** rng.random()))) for job in jobs]
