"""Kueue's own performance tests through our engine in simulated time: how many admissions a second of decisions gives.

    ./run bench kueue --size baseline

Cohorts are pools, queues are teams that are guaranteed 20 units and may borrow 100 more, reclaimed by who is guaranteed
them; small, medium and large workloads are of low, normal and high priority. Each queue creates its workloads at fixed
intervals, and each runs for a fixed time once it is admitted. Quota is counted without machines, so a pool is one host.
One second of the engine's clock stands for a millisecond here: work that is told to go is gone at once, and starts anew.

``decision_seconds`` is the engine's time alone, for changes and plans; theirs includes an API server and its store.
``time_to_admission`` is the mean in simulated seconds, in which a decision takes no time.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.traces.trace_replay import FAR_FUTURE
from scheduler.core.incremental_planner import IncrementalPlanner
from scheduler.core.model.plan import Plan
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    Priority,
    QueuedWorkload,
    QuotaInfo,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.model.snapshot_delta import SnapshotDelta
from scheduler.core.queue.runtime_prediction import RuntimeHistory
from scheduler.core.what_if.simulation import (
    Simulation,
    SimulationEvent,
    SimulationEventKind,
    WorkloadArrival,
)

SERVICES: tuple[str, ...] = ()

MODEL = "GPU"
NOMINAL, BORROWED = 20, 100  # units a queue is guaranteed, and may borrow
LIMIT = 60_000  # ms that every workload may run: Kueue's have no limit


@dataclass(frozen=True, slots=True)
class WorkloadClass:
    """What one queue gets of a class: ``count`` of them, one every ``every`` ms, each for ``runtime`` ms."""

    name: str
    units: int
    priority: Priority
    every: int
    count: int
    runtime: int


def classes(counts: tuple[int, int, int], runtimes: tuple[int, int, int]) -> tuple[WorkloadClass, ...]:
    """Small, medium and large; both tests differ in counts and runtimes only."""
    shapes = (
        ("small", 1, Priority.LOW, 100),
        ("medium", 5, Priority.NORMAL, 500),
        ("large", 20, Priority.HIGH, 1200),
    )
    return tuple(
        WorkloadClass(*shape, count, runtime)
        for shape, count, runtime in zip(shapes, counts, runtimes, strict=True)
    )


# cohorts, queues in each, classes
SIZES = {
    "baseline": (5, 6, classes((350, 100, 50), (200, 500, 1000))),
    "large": (10, 100, classes((35, 11, 4), (150, 350, 700))),
}


class TimedStanding(IncrementalPlanner):
    """Adds up the time spent on changes and plans."""

    seconds = 0.0

    def change(self, delta: SnapshotDelta) -> None:
        began = time.perf_counter()
        super().change(delta)
        self.seconds += time.perf_counter() - began

    def plan(self, now: int, *, explain: bool = True) -> Plan:
        began = time.perf_counter()
        planned = super().plan(now, explain=explain)
        self.seconds += time.perf_counter() - began
        return planned


def main(argv: list[str]) -> dict[str, Any]:
    """Admissions a second of decision time, and the mean time to admission per class (s)."""
    options = argparse.ArgumentParser(prog="kueue", description=__doc__)
    options.add_argument("--size", choices=sorted(SIZES), default="baseline")
    given = options.parse_args(argv)
    cohorts, queues, kinds = SIZES[given.size]
    run = KueueRun(cohorts, queues, kinds)
    run.simulation.run(FAR_FUTURE)
    planner = run.planner
    return {
        "size": given.size,
        "workloads": len(run.admitted),
        "plans": run.simulation.plans,
        "evictions": run.evictions,
        "decision_seconds": round(planner.seconds, 3),
        "admissions_per_second": round(len(run.admitted) / planner.seconds, 1),
        "time_to_admission": {name: run.mean_wait(name) for name in ("large", "medium", "small")},
        "simulated_seconds": round(run.last / 1000, 1),
    }


class KueueRun:
    """One test from the first workload to the end of the last."""

    def __init__(self, cohorts: int, queues: int, kinds: tuple[WorkloadClass, ...]) -> None:
        self.admitted: dict[int, int] = {}  # workload -> ms of its first admission
        self.arrived: dict[int, tuple[str, int]] = {}  # workload -> its class, and ms of its creation
        self.evictions = self.last = 0
        self.history, self.rows, self.since = RuntimeHistory(), dict[int, QueuedWorkload](), dict[int, int]()
        snapshot = organisation(cohorts, queues)
        self.simulation = Simulation(snapshot, 0, self._tell, self._foresee)
        self.simulation.planner = self.planner = TimedStanding(snapshot)
        for team in snapshot.teams:
            pool = (team.id - 1) // queues + 1
            for kind in kinds:
                for number in range(kind.count):
                    self._create(team.id, pool, kind, number * kind.every)

    def _create(self, team: int, pool: int, kind: WorkloadClass, at: int) -> None:
        workload = len(self.arrived) + 1
        self.arrived[workload] = kind.name, at
        queued = QueuedWorkload(
            workload,
            team,
            team,
            team,
            pool,
            Ask(kind.units),
            at,
            LIMIT,
            LIMIT,
            kind.priority,
            preemptible=True,
        )
        self.simulation.submit(WorkloadArrival(at, queued, kind.runtime))

    def _foresee(self, queued: QueuedWorkload) -> QueuedWorkload:
        row = self.rows[queued.id] = replace(queued, predicted_seconds=self.history.predict(queued))
        return row

    def _tell(self, event: SimulationEvent) -> None:
        assert event.workload is not None  # there are no reservations
        if event.kind is SimulationEventKind.PLACED:
            self.admitted.setdefault(event.workload, event.at)
            self.since[event.workload] = event.at
        elif event.kind is SimulationEventKind.EVICTED:
            self.evictions += 1
        elif event.kind is SimulationEventKind.ENDED:
            self.last = event.at
            self.history.finished(self.rows.pop(event.workload), event.at - self.since.pop(event.workload))

    def mean_wait(self, name: str) -> float:
        """Seconds from creation to the first admission, over one class."""
        waits = defaultdict[str, list[int]](list)
        for workload, (kind, at) in self.arrived.items():
            waits[kind].append(self.admitted[workload] - at)
        return round(sum(waits[name]) / len(waits[name]) / 1000, 3)


def organisation(cohorts: int, queues: int) -> Snapshot:
    """A pool per cohort, each with one host of as many GPUs as its queues are guaranteed together."""
    policy = PoolPolicy(notice_seconds=0, grace_seconds=0, minimum_runtime_seconds=0)
    pools = range(1, cohorts + 1)
    size = NOMINAL * queues
    return Snapshot(
        1,
        pools=tuple(PoolInfo(pool, f"cohort-{pool}", PoolKind.DYNAMIC, None, policy) for pool in pools),
        hosts=tuple(HostInfo(pool, f"host-{pool}", pool) for pool in pools),
        units=tuple(
            UnitInfo((pool - 1) * size + n + 1, pool, (pool - 1) * size + n + 1, MODEL)
            for pool in pools
            for n in range(size)
        ),
        teams=tuple(TeamInfo(team, f"queue-{team}") for team in range(1, cohorts * queues + 1)),
        quotas=tuple(
            QuotaInfo(
                team, (team - 1) // queues + 1, MODEL, NOMINAL * SLOTS_PER_GPU, BORROWED * SLOTS_PER_GPU
            )
            for team in range(1, cohorts * queues + 1)
        ),
    )
