"""Run Kueue's own performance tests through our engine, and report admissions per second of decision time.

    ./run bench kueue --size baseline

Kueue's terms are mapped as follows:

- A cohort is a pool. Kueue counts quota without machines, so the pool has only one host.
- A queue is a team with a guarantee of 20 units. A team may borrow 100 more units. A team reclaims its
  guaranteed units from borrowers.
- Small, medium and large workloads have low, normal and high priority.

Each queue creates its workloads at fixed intervals. Each workload runs for a fixed time after its admission.
An evicted workload stops at once and later starts again from the beginning. The engine's clock counts whole
seconds, so one of its seconds represents one millisecond of the test.

``decision_seconds`` is the time that the engine spends on changes and plans. Kueue's published figure also
includes an API server and its store. ``time_to_admission`` is a mean in simulated seconds. In simulated time,
decisions take no time.
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
NOMINAL, BORROWED = 20, 100  # guarantee and borrow limit of a queue, in units
LIMIT = 60_000  # ms; high enough for every workload, because Kueue's workloads have no limit


@dataclass(frozen=True, slots=True)
class WorkloadClass:
    """A workload class of a queue.

    The queue creates ``count`` workloads, one every ``every`` ms. Each runs for ``runtime`` ms.
    """

    name: str
    units: int
    priority: Priority
    every: int
    count: int
    runtime: int


def classes(counts: tuple[int, int, int], runtimes: tuple[int, int, int]) -> tuple[WorkloadClass, ...]:
    """Return the classes of small, medium and large workloads.

    ``counts`` and ``runtimes`` (ms) have one value for each class. The two test sizes differ only in these
    values and in the numbers of cohorts and queues.
    """
    shapes = (
        ("small", 1, Priority.LOW, 100),
        ("medium", 5, Priority.NORMAL, 500),
        ("large", 20, Priority.HIGH, 1200),
    )
    return tuple(
        WorkloadClass(*shape, count, runtime)
        for shape, count, runtime in zip(shapes, counts, runtimes, strict=True)
    )


# For each test size: number of cohorts, queues in each cohort, workload classes of each queue.
SIZES = {
    "baseline": (5, 6, classes((350, 100, 50), (200, 500, 1000))),
    "large": (10, 100, classes((35, 11, 4), (150, 350, 700))),
}


class TimedStanding(IncrementalPlanner):
    """An incremental planner that adds up the seconds that it spends on changes and plans."""

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
    """Return the admissions per second of decision time, and the mean seconds to admission of each class."""
    parser = argparse.ArgumentParser(prog="kueue", description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="baseline")
    options = parser.parse_args(argv)
    cohorts, queues, workload_classes = SIZES[options.size]
    run = KueueRun(cohorts, queues, workload_classes)
    run.simulation.run(FAR_FUTURE)
    planner = run.planner
    return {
        "size": options.size,
        "workloads": len(run.admitted),
        "plans": run.simulation.plans,
        "evictions": run.evictions,
        "decision_seconds": round(planner.seconds, 3),
        "admissions_per_second": round(len(run.admitted) / planner.seconds, 1),
        "time_to_admission": {name: run.mean_wait(name) for name in ("large", "medium", "small")},
        "simulated_seconds": round(run.last / 1000, 1),
    }


class KueueRun:
    """One test, from the first workload until all workloads have ended."""

    def __init__(self, cohorts: int, queues: int, workload_classes: tuple[WorkloadClass, ...]) -> None:
        self.admitted: dict[int, int] = {}  # time of the first admission in ms, by workload
        self.arrived: dict[int, tuple[str, int]] = {}  # (class, time of creation in ms), by workload
        self.evictions = self.last = 0
        self.history, self.rows, self.since = RuntimeHistory(), dict[int, QueuedWorkload](), dict[int, int]()
        snapshot = organisation(cohorts, queues)
        self.simulation = Simulation(snapshot, 0, self._on_event, self._predict)
        self.simulation.planner = self.planner = TimedStanding(snapshot)
        for team in snapshot.teams:
            pool = (team.id - 1) // queues + 1
            for workload_class in workload_classes:
                for number in range(workload_class.count):
                    self._create(team.id, pool, workload_class, number * workload_class.every)

    def _create(self, team: int, pool: int, workload_class: WorkloadClass, at: int) -> None:
        workload = len(self.arrived) + 1
        self.arrived[workload] = workload_class.name, at
        queued = QueuedWorkload(
            workload,
            team,
            team,
            team,
            pool,
            Ask(workload_class.units),
            at,
            LIMIT,
            LIMIT,
            workload_class.priority,
            preemptible=True,
        )
        self.simulation.submit(WorkloadArrival(at, queued, workload_class.runtime))

    def _predict(self, queued: QueuedWorkload) -> QueuedWorkload:
        row = self.rows[queued.id] = replace(queued, predicted_seconds=self.history.predict(queued))
        return row

    def _on_event(self, event: SimulationEvent) -> None:
        assert event.workload is not None  # only events of reservations have no workload
        if event.kind is SimulationEventKind.PLACED:
            self.admitted.setdefault(event.workload, event.at)
            self.since[event.workload] = event.at
        elif event.kind is SimulationEventKind.EVICTED:
            self.evictions += 1
        elif event.kind is SimulationEventKind.ENDED:
            self.last = event.at
            self.history.finished(self.rows.pop(event.workload), event.at - self.since.pop(event.workload))

    def mean_wait(self, name: str) -> float:
        """Return the mean seconds from creation to first admission, for the workloads of one class."""
        waits = defaultdict[str, list[int]](list)
        for workload, (kind, at) in self.arrived.items():
            waits[kind].append(self.admitted[workload] - at)
        return round(sum(waits[name]) / len(waits[name]) / 1000, 3)


def organisation(cohorts: int, queues: int) -> Snapshot:
    """Return a snapshot with one pool for each cohort and one team for each queue.

    Each pool has one host. Its number of GPUs is the sum of the guarantees of the pool's queues.
    """
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
