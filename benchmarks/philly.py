"""Microsoft Philly, October and November 2017 as one pool, in simulated time: FIFO, EASY, and our order.

    ./run bench philly --jobs philly.csv --nodes 64

68,510 jobs on ``--nodes`` nodes of 8 GPUs; more than 8 GPUs are that many nodes with equal parts. ``fifo`` is strict and
``easy`` node-exact, both with runtimes known beforehand. ``easy_limits`` and ``ours_limits`` know limits only: each
runtime times a factor between 1 and 10, log-uniform, from ``--seed``. Ours runs through the planner.
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
    """Mean completion and waits in seconds, each way; ``wall`` is what the whole run took (s)."""
    options = argparse.ArgumentParser(prog="philly", description=__doc__)
    options.add_argument("--jobs", metavar="FILE")
    options.add_argument("--nodes", type=integer_argument(1, 10_000), default=64)
    options.add_argument("--seed", type=integer_argument(0), default=42)
    options.add_argument("--first", type=integer_argument(1), metavar="N", help="the first N jobs only")
    options.add_argument("--only", choices=WAYS, nargs="+", default=WAYS, help="leave the other ways out")
    given = options.parse_args(argv)
    began = time.perf_counter()
    known = read(trace_file(given.jobs, "philly", "philly.csv"))[: given.first]
    check_jobs_fit(known, given.nodes)
    limited = with_limits(known, given.seed)
    answer: dict[str, Any] = {"nodes": given.nodes, "jobs": len(known), "seed": given.seed}
    for way in given.only:
        jobs = limited if way.endswith("_limits") else known
        if way == "ours_limits":
            started = TraceReplay(jobs, given.nodes).run()
        else:
            started = simulate_starts(
                jobs, given.nodes, QueueOrder(way.removesuffix("_limits")), GPUS_PER_NODE
            )
        answer[way] = {**wait_figures(jobs, started), "p99_by_size": p99_by_size(jobs, started)}
    return {**answer, "wall": round(time.perf_counter() - began, 1)}


def read(path: Path) -> list[TraceJob]:
    """The jobs submitted in the two months, the first first. Limits are the runtimes; teams the virtual clusters."""
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
                except ValueError as wrong:
                    raise SystemExit(f"gpupool: {path}, line {rows.line_num}: {wrong}") from wrong
    jobs.sort(key=lambda job: job.submitted)
    return [replace(job, id=number) for number, job in enumerate(jobs, 1)]


def _job(row: dict[str, str], team: int) -> TraceJob:
    gpus = int(row["num_gpus"])
    if gpus < 1:
        raise ValueError(f"num_gpus is {gpus}, allowed are 1 and more")
    nodes = -(-gpus // GPUS_PER_NODE)
    runtime = max(1, round(float(row["duration"])))
    submitted = int(datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp())
    return TraceJob(0, submitted, nodes, -(-gpus // nodes), runtime, runtime, team, team)


def with_limits(jobs: Sequence[TraceJob], seed: int) -> list[TraceJob]:
    """The same jobs with what their owners would say: the runtime times a factor from 1 to 10, log-uniform."""
    rng = random.Random(seed)
    return [replace(job, limit=max(1, round(job.runtime * LIMIT_FACTOR ** rng.random()))) for job in jobs]
