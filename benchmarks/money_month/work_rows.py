"""Generate the work of a month: workloads, their runs and allocations, and rollups of some hosts.

The GPUs of a host are divided into lanes of 1, 2, 4 or 8 whole GPUs, or of one slice. Jobs follow each other
in a lane, half of them without a pause. The lengths of the jobs are long-tailed. One seed determines
everything.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction

from benchmarks.money_month.bulk_load import TableLoader, unchecked
from benchmarks.money_month.organisation_rows import GPUS_PER_HOST, BusyHost, GeneratedOrganisation
from scheduler.models import Allocation, Run, Workload
from scheduler.state.states import RunState, WorkloadState
from telemetry.core.rollup import UsageSums
from telemetry.rollups.storage import StoredUse, pack_rollups, write_rollups

LANES = ((8,), (4, 4), (4, 2, 1, 1), (2, 2, 2, 2), (2, 1, 1, 1, 1, 1, 1), (1,) * 8, (1,) * 8, (1,) * 8)
END_CODES = ("finished", "evicted_for_guarantee", "killed_at_grace", "gpu_error", "failed")
END_WEIGHTS = (80, 6, 3, 2, 9)
TYPES = (("job", "training"), ("job", "inference"), ("job", "other"), ("notebook", "interactive"))
TYPE_WEIGHTS = (60, 15, 10, 15)
LONG_JOB_SHARE, LONG_JOB_FACTOR = 0.12, 8.0
PAUSE_SHARE, MEAN_PAUSE = 0.5, 0.3  # MEAN_PAUSE is relative to the mean length of usual jobs
# One in this many hosts has hour rollups, which give its charge lines their usage evidence.
MEASURED_EVERY = 20
HOUR = 3_600
SHORTEST_JOB_SECONDS = 20
TABLES = ("scheduler_workload", "scheduler_run", "scheduler_allocation")


@dataclass
class Lane:
    """Units of one host that are always held together. ``jobs`` is the number of jobs that use the lane."""

    host: BusyHost
    units: list[tuple[int, int, int]]
    jobs: int


@dataclass(frozen=True)
class Job:
    """A job with its times in seconds since the epoch. Its id is also the id of its run."""

    id: int
    lane: Lane
    start: float
    end: float
    project: int
    kind: str
    type: str
    end_code: str
    checkpoint: float | None


def write_work(organisation: GeneratedOrganisation, allocations: int, rng: random.Random) -> int:
    """Write work with exactly ``allocations`` allocations. Return the number of workloads.

    Raises ValueError if ``allocations`` is too small for the number of hosts.
    """
    lanes = _lanes(organisation.hosts, allocations)
    jobs = list(_jobs(organisation, lanes, rng))
    write_jobs(organisation, jobs, rng)
    _write_rollups(organisation, jobs, rng)
    return len(jobs)


def write_jobs(
    organisation: GeneratedOrganisation, jobs: list[Job], rng: random.Random, first_allocation: int = 1
) -> None:
    """Write the workloads, runs and allocations of these jobs. Allocations are numbered by their start."""
    with unchecked(TABLES):
        _workload_loader(organisation).load(_workload_rows(organisation, jobs, rng))
        _run_loader(organisation).load(_run_rows(jobs, rng))
        _allocation_loader().load(_allocation_rows(jobs, first_allocation))


def lanes_of(hosts: list[BusyHost]) -> list[Lane]:
    """Divide the units of the hosts into lanes without jobs."""
    lanes = []
    for number, host in enumerate(hosts):
        sizes = (1,) * len(host.units) if host.sliced else LANES[number % len(LANES)]
        rest = iter(host.units)
        lanes += [Lane(host, [next(rest) for _ in range(size)], 0) for size in sizes]
    return lanes


def _lanes(hosts: list[BusyHost], allocations: int) -> list[Lane]:
    lanes = lanes_of(hosts)
    per_gpu = allocations // (len(hosts) * GPUS_PER_HOST)
    for lane in lanes:
        lane.jobs = (
            per_gpu if not lane.host.sliced else max(1, per_gpu * GPUS_PER_HOST // len(lane.host.units))
        )
    single = [lane for lane in lanes if len(lane.units) == 1]
    left = allocations - sum(lane.jobs * len(lane.units) for lane in lanes)
    if left < 0 or per_gpu < 1 or not single:
        raise ValueError(f"allocations: {allocations} is too small for {len(hosts)} hosts")
    for index, lane in enumerate(single):
        lane.jobs += (index + 1) * left // len(single) - index * left // len(single)
    return lanes


def _jobs(organisation: GeneratedOrganisation, lanes: list[Lane], rng: random.Random) -> Iterator[Job]:
    start, end = organisation.start.timestamp(), organisation.end.timestamp()
    number = 0
    for lane in lanes:
        weights = []
        for _ in range(lane.jobs):
            pause = rng.expovariate(1 / MEAN_PAUSE) if rng.random() < PAUSE_SHARE else 0.0
            weights.append(
                (pause, rng.expovariate(1.0) * (LONG_JOB_FACTOR if rng.random() < LONG_JOB_SHARE else 1.0))
            )
        shortest = SHORTEST_JOB_SECONDS
        scale = (end - start - shortest * lane.jobs) / sum(map(sum, weights))
        at = start
        for pause, length in weights:
            number += 1
            begin = at + pause * scale
            at = begin + shortest + length * scale
            yield _job(organisation, lane, number, begin, at, rng)


def _job(
    organisation: GeneratedOrganisation, lane: Lane, number: int, begin: float, end: float, rng: random.Random
) -> Job:
    kind, work_type = rng.choices(TYPES, TYPE_WEIGHTS)[0]
    code = rng.choices(END_CODES, END_WEIGHTS)[0]
    saved = begin + (end - begin) * rng.random() if rng.random() < 0.7 else None
    project = lane.host.project or rng.choice(organisation.projects)
    # The last job of a lane ends with the month. Rounding of floats could move its end after the month.
    end = min(end, organisation.end.timestamp())
    return Job(number, lane, begin, end, project, kind, work_type, code, saved)


def _workload_loader(organisation: GeneratedOrganisation) -> TableLoader:
    template = Workload(
        command="true",
        units=1,
        max_runtime_seconds=7 * 86_400,
        predicted_seconds=HOUR,
        state=WorkloadState.ENDED,
        attempt=1,
        outcome="finished",
        submitted_at=organisation.start,
    )
    varying = "id public_id kind type name pool_id project_id owner_id units queued_at started_at ended_at"
    return TableLoader(template, varying.split())


def _workload_rows(
    organisation: GeneratedOrganisation, jobs: list[Job], rng: random.Random
) -> Iterator[tuple[Any, ...]]:
    for job in jobs:
        owner = rng.choice(organisation.owners[job.project])
        begin = _moment(job.start)
        pool, units = job.lane.host.pool, len(job.lane.units)
        yield (
            *(job.id, _uuid(rng), job.kind, job.type, f"work {job.id}", pool, job.project, owner, units),
            *(begin, begin, _moment(job.end)),
        )


def _run_loader(organisation: GeneratedOrganisation) -> TableLoader:
    template = Run(attempt=1, state=RunState.ENDED, outcome="finished", placed_at=organisation.start)
    varying = "id workload_id host_id generation public_id running_at ended_at checkpoint_at"
    return TableLoader(template, varying.split())


def _run_rows(jobs: list[Job], rng: random.Random) -> Iterator[tuple[Any, ...]]:
    for job in jobs:
        saved = None if job.checkpoint is None else _moment(job.checkpoint)
        begin, end = _moment(job.start), _moment(job.end)
        yield job.id, job.id, job.lane.host.id, job.id, _uuid(rng), begin, end, saved


def _allocation_loader() -> TableLoader:
    varying = "id run_id workload_id project_id unit_id reservation_id slots period end_code"
    return TableLoader(Allocation(), varying.split())


def _allocation_rows(jobs: list[Job], first: int) -> Iterator[tuple[Any, ...]]:
    number = first - 1
    for job in sorted(jobs, key=lambda each: each.start):
        period = f"[{_moment(job.start)},{_moment(job.end)})"
        for unit, low, high in job.lane.units:
            number += 1
            slots = f"[{low},{high})"
            booked = job.lane.host.reservation
            yield number, job.id, job.id, job.project, unit, booked, slots, period, job.end_code


def _write_rollups(organisation: GeneratedOrganisation, jobs: list[Job], rng: random.Random) -> None:
    """Write the hour rollups of some hosts' allocations, one host at a time."""
    uses: dict[int, list[StoredUse]] = {host.id: [] for host in organisation.hosts[::MEASURED_EVERY]}
    allocation = 0
    for job in sorted(jobs, key=lambda each: each.start):  # in the order of _allocation_rows
        for unit, _, _ in job.lane.units:
            allocation += 1
            if job.lane.host.id not in uses:
                continue
            use = rng.uniform(0.2, 1.0)
            for hour in range(int(job.start) // HOUR * HOUR, int(job.end) + 1, HOUR):
                held = min(job.end, hour + HOUR) - max(job.start, hour)
                if held <= 0:
                    continue
                covered = held * 0.99
                sums = UsageSums(held, covered, samples=360, utilisation_seconds=covered * use)
                bucket = datetime.fromtimestamp(hour, UTC)
                uses[job.lane.host.id].append(StoredUse(bucket, job.lane.host.id, unit, allocation, sums))
    for of_host in uses.values():
        with transaction.atomic():
            write_rollups(HOUR, of_host)
            pack_rollups(HOUR, organisation.end)


def _moment(seconds: float) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat()


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
