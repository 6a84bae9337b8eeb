"""Replay SenseTime Helios (Venus) in simulated time, and compare our queue order with FIFO, SJF and EASY.

    ./run bench helios --jobs helios_venus_2vc_sept.csv

Each virtual cluster is a separate pool of nodes with 8 GPUs: vcvGl has 20 nodes, vcvlY has 2 nodes.

- ``fifo`` and ``sjf`` start jobs strictly in order: they stop at the first job that does not fit. ``sjf``
  orders by the real runtimes.
- ``easy`` is FIFO with EASY backfill. It uses the runtime limits of the file.
- ``ours`` runs the jobs through the planner. It uses the runtime limits of the file, and predicts runtimes
  from the jobs that have finished before.
- ``easy_limits`` and ``ours_limits`` use other limits: each runtime times a random factor of 1 to 10, as in
  ``bench philly``.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

from benchmarks.philly import with_limits
from benchmarks.traces.queue_baselines import QueueOrder, TraceJob, p99_by_size, simulate_starts, wait_figures
from benchmarks.traces.trace_replay import TraceReplay, trace_file

SERVICES: tuple[str, ...] = ()

NODES = {"vcvGl": 20, "vcvlY": 2}
SEED = 42  # of the random runtime limits
WAYS: tuple[tuple[str, QueueOrder | None], ...] = (
    ("fifo", QueueOrder.FIFO),
    ("sjf", QueueOrder.SJF),
    ("easy", QueueOrder.EASY),
    ("ours", None),
    ("easy_limits", QueueOrder.EASY),
    ("ours_limits", None),
)
COLUMNS = (
    "job_id",
    "user",
    "tenant",
    "submit_time",
    "num_chips",
    "num_nodes",
    "duration_s",
    "walltime_limit_s",
)


def main(argv: list[str]) -> dict[str, Any]:
    """Return the mean completion time, and the mean, p99 and longest wait, in seconds.

    Each figure is given in total and for each virtual cluster.
    """
    parser = argparse.ArgumentParser(prog="helios", description=__doc__)
    parser.add_argument("--jobs", metavar="FILE")
    options = parser.parse_args(argv)
    clusters = read(trace_file(options.jobs, "helios", "helios_venus_2vc_sept.csv"))
    all_jobs = [job for jobs in clusters.values() for job in jobs]
    figures: dict[str, Any] = {"jobs": len(all_jobs)}
    for name, order in WAYS:
        started: dict[int, int] = {}
        by_cluster = {}
        for cluster, known in clusters.items():
            nodes = NODES[cluster]
            jobs = with_limits(known, SEED) if name.endswith("_limits") else known
            starts = (
                simulate_starts(jobs, nodes, order) if order is not None else TraceReplay(jobs, nodes).run()
            )
            by_cluster[cluster] = wait_figures(jobs, starts)
            started |= starts
        figures[name] = {
            **wait_figures(all_jobs, started),
            "p99_by_size": p99_by_size(all_jobs, started),
            "clusters": by_cluster,
        }
    return figures


def read(path: Path) -> dict[str, list[TraceJob]]:
    """Return the jobs of each virtual cluster. Lines of the file that begin with # are comments."""
    with path.open(newline="") as lines:
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
        if missing:
            raise SystemExit(f"gpupool: {path} has no column {', '.join(missing)}")
        clusters: dict[str, list[TraceJob]] = {name: [] for name in NODES}
        users: dict[str, int] = {}
        for row in rows:
            if row["tenant"] not in NODES:
                raise SystemExit(
                    f"gpupool: {path}: tenant {row['tenant']!r} is unknown; known are {', '.join(NODES)}"
                )
            nodes = int(row["num_nodes"])
            clusters[row["tenant"]].append(
                TraceJob(
                    id=int(row["job_id"]),
                    submitted=int(row["submit_time"]) // 1_000_000,
                    nodes=nodes,
                    per_node=int(row["num_chips"]) // nodes,
                    runtime=round(float(row["duration_s"])),
                    limit=round(float(row["walltime_limit_s"])),
                    team=list(NODES).index(row["tenant"]) + 1,
                    user=users.setdefault(row["user"], len(users) + 1),
                )
            )
    return clusters
