"""Compare the waits of a replay with the recorded waits.

Each seed makes the demand of a shared pool: three teams with guarantees, notebooks and training on one model,
weekdays and office hours, and bursts. A replay does not know some facts of the quarter: work that already
ran or waited when the record began, hosts in maintenance, owners who give up while they wait, and run lengths
other than the held time. The record has the facts that the rows of the product have. It is replayed with the
same number of GPUs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    MaintenanceInfo,
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
from scheduler.core.what_if.simulation import (
    Simulation,
    SimulationEvent,
    SimulationEventKind,
    WorkloadArrival,
)
from telemetry.core.capacity.quarter_replay import RecordedDemand, RecordedRequest, replay
from telemetry.core.capacity.size_figures import recorded_waits, size_figures, wait_error

UNSEEN_SEEDS = range(101, 106)
MODEL = "H100-80GB"
HOUR, DAY = 3_600, 86_400
WEEKS = 13
HOSTS, GPUS_PER_HOST = 5, 8
WARM_UP = 7 * DAY  # before the record begins
# GPUs of a request and their shares: most need one GPU, as in the Philly trace (93 %), but more are large.
SIZES = {1: 70, 2: 12, 4: 10, 8: 7, 16: 1}
LOADS = (0.6, 0.85)  # part of the GPUs that the requests of a week need
GUARANTEES = {1: 16, 2: 10, 3: 6}  # GPUs of each team


def score_replays(seeds: Iterable[int], weeks: int = WEEKS) -> float:
    """Return the mean difference between replayed and recorded p95 waits, as part of the recorded one."""
    errors = []
    for seed in seeds:
        demand = recorded_demand(seed, weeks)
        figures = size_figures(demand, replay(demand), MODEL, 0, HOSTS * GPUS_PER_HOST)
        error = wait_error(figures.waits, recorded_waits(demand, MODEL))
        if error is not None:
            errors.append(error)
    return sum(errors) / len(errors)


def recorded_demand(seed: int, weeks: int = WEEKS) -> RecordedDemand:
    """Return the demand that the product would have recorded in ``weeks`` weeks."""
    rng = random.Random(f"quarter-{seed}")
    start, end = WARM_UP, WARM_UP + weeks * 7 * DAY
    truth = _Truth(rng, _hardware(rng, end), end)
    truth.simulation.run(end)
    queued, requests = [], []
    for job in truth.jobs:
        known = truth.recorded(job, start, end)
        if known is not None:
            queued.append(job.queued)
            requests.append(known)
    snapshot = replace(truth.hardware, maintenance=(), queued=tuple(queued))
    return RecordedDemand(snapshot, start, end, tuple(requests))


class _Truth:
    """The simulated quarter from which the record is made."""

    def __init__(self, rng: random.Random, hardware: Snapshot, end: int) -> None:
        self.hardware = hardware
        self.jobs = _jobs(rng, end)
        self.first: dict[int, int] = {}
        self.last: dict[int, tuple[int, int | None]] = {}  # start and end of the last attempt
        self.saved: dict[int, int] = {}
        self.simulation = Simulation(hardware, 0, self._on_event)
        for job in self.jobs:
            self.simulation.submit(job)
            if rng.random() < 0.05:
                self._give_up_after(job, round(rng.expovariate(1 / (12 * HOUR))))

    def _give_up_after(self, job: WorkloadArrival, seconds: int) -> None:
        def give_up() -> None:
            if self.simulation.queued.pop(job.queued.id, None) is not None:
                self.simulation.changed_queued.add(job.queued.id)
                self.simulation.changed = True

        self.simulation.at(job.at + seconds, give_up)

    def _on_event(self, event: SimulationEvent) -> None:
        work = event.workload
        if work is None:
            return
        if event.kind is SimulationEventKind.PLACED:
            self.first.setdefault(work, event.at)
            self.last[work] = event.at, None
        elif event.kind is SimulationEventKind.ENDED:
            self.last[work] = self.last[work][0], event.at
        elif event.kind is SimulationEventKind.STOPPED:
            if event.code == "checkpointed":
                self.saved[work] = self.saved.get(work, 0) + event.at - self.last[work][0]
            self.last[work] = self.last[work][0], event.at

    def recorded(self, job: WorkloadArrival, start: int, end: int) -> RecordedRequest | None:
        """Return the recorded course of a request, as ``telemetry.capacity.recorded`` reads it."""
        work = job.queued.id
        if job.at >= end:
            return None
        if work not in self.first:
            is_waiting = work in self.simulation.queued
            if not is_waiting:
                return None
            return RecordedRequest(
                work,
                max(job.at, start),
                job.queued.predicted_seconds,
                job.checkpoint_seconds,
                end - max(job.at, start),
                job.at >= start,
            )
        since, until = self.last[work]
        if until is not None and until <= start:
            return None
        runtime = (end if until is None else until) - since + self.saved.get(work, 0)
        if since < start:
            runtime -= start - since
        if until is None:
            runtime = max(runtime, job.queued.predicted_seconds)
        return RecordedRequest(
            work,
            max(job.at, start),
            max(1, runtime),
            job.checkpoint_seconds,
            max(0, self.first[work] - job.at),
            job.at >= start,
        )


def _hardware(rng: random.Random, end: int) -> Snapshot:
    hosts = tuple(HostInfo(n + 1, f"node-{n + 1:02d}", 1) for n in range(HOSTS))
    windows = []
    for _ in range(end // (21 * DAY)):
        since = rng.randrange(0, end)
        windows.append(MaintenanceInfo(rng.randrange(HOSTS) + 1, since, since + rng.randrange(2, 9) * HOUR))
    gpus = range(HOSTS * GPUS_PER_HOST)
    return Snapshot(
        1,
        pools=(PoolInfo(1, "shared", PoolKind.DYNAMIC, None, PoolPolicy()),),
        hosts=hosts,
        units=tuple(UnitInfo(g + 1, g // GPUS_PER_HOST + 1, g + 1, MODEL) for g in gpus),
        teams=tuple(TeamInfo(team, f"team-{team}") for team in GUARANTEES),
        quotas=tuple(
            QuotaInfo(team, 1, MODEL, guarantee * SLOTS_PER_GPU) for team, guarantee in GUARANTEES.items()
        ),
        maintenance=tuple(windows),
    )


def _jobs(rng: random.Random, end: int) -> list[WorkloadArrival]:
    """Return the requests: more in office hours, fewer at weekends, with a load that changes by week."""
    found: list[WorkloadArrival] = []
    for week in range(end // (7 * DAY)):
        wanted = rng.uniform(*LOADS) * HOSTS * GPUS_PER_HOST * 7 * DAY
        while wanted > 0:
            job = _job(rng, len(found) + 1, week)
            wanted -= job.runtime_seconds * job.queued.ask.total_units
            found.append(job)
    return found


def _job(rng: random.Random, number: int, week: int) -> WorkloadArrival:
    day = rng.choices(range(7), (5, 5, 5, 5, 5, 2, 2))[0]
    hour = min(23.99, max(0.0, rng.gauss(14, 4)))
    at = week * 7 * DAY + day * DAY + round(hour * HOUR)
    runtime = min(2 * DAY, max(300, round(math.exp(rng.gauss(math.log(3 * HOUR), 1.3)))))
    limit = min(7 * DAY, round(runtime * rng.uniform(1.1, 4)))
    team = rng.choices((1, 2, 3), (5, 3, 2))[0]
    preemptible = rng.random() < 0.85
    # The portal refuses a request that can never start: work that is not preemptible cannot borrow.
    sizes = [size for size in SIZES if preemptible or size <= GUARANTEES[team]]
    gpus = rng.choices(sizes, [SIZES[size] for size in sizes])[0]
    queued = QueuedWorkload(
        number,
        team,
        team,
        team * 100 + rng.randrange(6),
        1,
        Ask(min(gpus, GPUS_PER_HOST), max(1, gpus // GPUS_PER_HOST)),
        at,
        limit,
        max(60, min(limit, round(runtime * rng.uniform(0.6, 1.6)))),
        priority=rng.choices((Priority.LOW, Priority.NORMAL, Priority.HIGH), (1, 6, 1))[0],
        preemptible=preemptible,
        may_borrow=preemptible,
    )
    return WorkloadArrival(at, queued, runtime, 1_800 if rng.random() < 0.6 else None)
