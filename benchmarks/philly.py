"""Replay Microsoft Philly in simulated time, and compare our queue order with FIFO and EASY.

    ./run bench philly --jobs philly.csv --nodes 64

The 68,510 jobs of October and November 2017 run on ``--nodes`` nodes of 8 GPUs. A job of more than 8 GPUs
uses several nodes, with an equal number of GPUs on each.

- ``fifo`` is strict FIFO: it stops at the first job that does not fit.
- ``easy`` is FIFO with EASY backfill, which reserves particular nodes.
- ``easy_limits`` is EASY without known runtimes. It knows only a runtime limit for each job: the runtime
  times a random factor of 1 to 10 (log-uniform, from ``--seed``).
- ``ours_limits`` is our order with the same limits. It runs through the planner.

``fifo`` and ``easy`` know the exact runtimes.
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
    """Return the mean completion time and the waits of each order, in seconds.

    ``wall`` is the duration of this benchmark in seconds.
    """
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
    """Return the jobs of both months, ordered by submission.

    The limit of each job is its runtime. Its team is its virtual cluster.
    """
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
    """Return the jobs with simulated runtime limits.

    Each limit is the job's runtime times a random factor of 1 to 10 (log-uniform).
    """
    rng = random.Random(seed)
    return [replace(job, limit=max(1, round(job.runtime * LIMIT_FACTOR ** rng.random()))) for job in jobs]
