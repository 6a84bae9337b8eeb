"""Replay the jobs of a trace through our own engine.

The planner, its queue order, its predictions and its simulated time are those of the product. All teams are
equal: they have no guarantees and may borrow without a limit, and past use does not count. So the replay
measures the default queue order, including the units that it holds for waiting jobs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.traces.queue_baselines import TraceJob
from scheduler.core.model.plan import Refusal
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    QueuedWorkload,
    QuotaInfo,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.queue.runtime_prediction import RuntimeHistory
from scheduler.core.reasons import ReasonCode
from scheduler.core.what_if.simulation import (
    Simulation,
    SimulationEvent,
    SimulationEventKind,
    WorkloadArrival,
)

MODEL = "GPU"
FAR_FUTURE = 1 << 40
PROGRESS_EVERY = 20_000  # ended jobs between two lines of progress


def trace_snapshot(nodes: int, teams: Sequence[int], size: int = 8) -> Snapshot:
    """Return one dynamic pool of ``nodes`` hosts with ``size`` GPUs each.

    All ``teams`` have equal weight and no guarantee.
    """
    return Snapshot(
        1,
        pools=(
            PoolInfo(
                1,
                "trace",
                PoolKind.DYNAMIC,
                None,
                PoolPolicy(half_life_seconds=0, longest_runtime_seconds=FAR_FUTURE),
            ),
        ),
        hosts=tuple(HostInfo(n + 1, f"node-{n + 1:04d}", 1) for n in range(nodes)),
        units=tuple(
            UnitInfo(n * size + g + 1, n + 1, n * size + g + 1, MODEL)
            for n in range(nodes)
            for g in range(size)
        ),
        teams=tuple(TeamInfo(team, f"team-{team}") for team in sorted(set(teams))),
        quotas=tuple(QuotaInfo(team, 1, MODEL, 0) for team in sorted(set(teams))),
    )


def as_arrival(job: TraceJob) -> WorkloadArrival:
    """Return a job as an arrival of our queue.

    Its predicted runtime is set later, when it is submitted in the simulation.
    """
    queued = QueuedWorkload(
        job.id,
        job.team,
        job.team,
        job.user,
        1,
        Ask(job.per_node, job.nodes),
        job.submitted,
        job.limit,
        job.limit,
        preemptible=True,
    )
    return WorkloadArrival(job.submitted, queued, job.runtime)


class TraceReplay:
    """A replay of ``jobs`` from the first submission to the last end.

    Runtimes are predicted from the jobs that have ended before.
    """

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        nodes: int,
        on_refusal: Callable[[int, Refusal], None] | None = None,
        is_sampled: Callable[[QueuedWorkload], bool] = lambda queued: False,
        on_start: Callable[[int, int], None] = lambda workload, now: None,
    ) -> None:
        """Prepare the replay.

        If ``is_sampled`` returns True for a job and the job has to wait, ``on_refusal`` is called with the
        time and the refusal at its submission. ``on_start`` is called with the id and the start of every job.
        """
        self.started: dict[int, int] = {}
        self.is_sampled, self.on_start = is_sampled, on_start
        self.history = RuntimeHistory()
        self.rows: dict[int, QueuedWorkload] = {}
        self.events = 0
        snapshot = trace_snapshot(nodes, [job.team for job in jobs])
        self.simulation = Simulation(
            snapshot, min(job.submitted for job in jobs), self._on_event, self._predict, on_refusal
        )
        for job in sorted(jobs, key=lambda job: (job.submitted, job.id)):
            self.simulation.submit(as_arrival(job))

    def run(self) -> dict[int, int]:
        """Run the replay. Return the start of each job in seconds, by job id."""
        began = time.perf_counter()
        self.simulation.run(FAR_FUTURE)
        seconds = time.perf_counter() - began
        print(f"{self.simulation.plans} plans in {seconds:.1f} s", file=sys.stderr, flush=True)
        return self.started

    def _predict(self, queued: QueuedWorkload) -> QueuedWorkload:
        row = replace(queued, predicted_seconds=self.history.predict(queued))
        self.rows[row.id] = row
        if self.is_sampled(row):
            self.simulation.refusal_requested_for.add(row.id)
        return row

    def _on_event(self, event: SimulationEvent) -> None:
        assert event.workload is not None  # only events of reservations have no workload
        if event.kind is SimulationEventKind.PLACED:
            self.started.setdefault(event.workload, event.at)
            self.on_start(event.workload, event.at)
        elif event.kind is SimulationEventKind.ENDED:
            row = self.rows.pop(event.workload)
            if event.code == ReasonCode.FINISHED:
                self.history.finished(row, event.at - self.started[event.workload])
            self.events += 1
            if self.events % PROGRESS_EVERY == 0:
                waiting = len(self.simulation.queued)
                print(f"{self.events} jobs have ended, {waiting} wait", file=sys.stderr, flush=True)


def integer_argument(low: int, high: int = 1_000_000) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``low`` to ``high``, for argparse."""

    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text[:20]) <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {low} to {high}")
        return int(text)

    return read


def check_jobs_fit(jobs: Sequence[TraceJob], nodes: int) -> None:
    """Raise SystemExit if there are no jobs, or if a job needs more nodes than the cluster has."""
    largest = max((job.nodes for job in jobs), default=0)
    if not jobs or largest > nodes:
        raise SystemExit(
            f"gpupool: {len(jobs)} jobs, the largest on {largest} nodes, do not fit on {nodes} nodes"
        )


def trace_file(given: str | None, *usual: str) -> Path:
    """Return the path ``given``, or by default the path ``usual`` in the folder GPUPOOL_TRACES.

    Raise SystemExit if there is no such file.
    """
    folder = Path(os.environ.get("GPUPOOL_TRACES", Path(__file__).resolve().parents[3] / "shared" / "data"))
    path = Path(given) if given else folder.joinpath(*usual)
    if not path.is_file():
        raise SystemExit(
            f"gpupool: {path} is not a file; give --jobs FILE, or set GPUPOOL_TRACES to the traces' folder"
        )
    return path
