"""Create the database rows of a half-full pool of any size: hosts, running work and waiting work.

There are two GPU models. Every tenth host is split into MIG slices. 20 teams have equal guarantees, which
together are three quarters of the pool. The initial waiting jobs cannot start, because their team has no
guarantee and may not borrow. One seed determines everything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange, NumericRange

from scheduler import services
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import (
    Allocation,
    Command,
    Gpu,
    Host,
    Leader,
    MaintenanceWindow,
    Pool,
    Project,
    Quota,
    Run,
    Team,
    Unit,
    Workload,
)
from scheduler.requests import WorkloadRequest

GPUS_PER_HOST = 8
MODELS = ("H100-80GB", "A100-40GB")
MEMORY_MIB = {"H100-80GB": 81_559, "A100-40GB": 40_960}
SLICE, SLICES_PER_GPU = "1g.10gb", 7
TEAMS = 20
HOUR = timedelta(hours=1)
BATCH = 5_000


@dataclass
class PoolRows:
    """The rows to which new workloads refer.

    Workloads of ``projects`` can start. Workloads of ``blocked_project`` cannot start.
    """

    pool: Pool
    projects: list[Project]
    blocked_project: Project
    owners: list[Any]
    hosts: list[Host]

    def queue(self, now: datetime, number: int, **overrides: Any) -> Workload:
        """Queue one job of one GPU through the real service, and return it.

        ``number`` selects the team and the GPU model in turn.
        """
        team_index = number % len(self.projects)
        columns: dict[str, Any] = {
            "kind": "job",
            "type": "training",
            "name": f"job {number}",
            "pool": self.pool,
            "project": self.projects[team_index],
            "owner": self.owners[team_index],
            "units": 1,
            "models_wanted": [MODELS[number % 2]],
            "max_runtime_seconds": 14_400,
            "preemptible": True,
            "command": "true",
        }
        columns |= overrides
        owner = columns.pop("owner")
        return services.queue_workload(WorkloadRequest(**columns), owner=owner, now=now)


def make_pool_rows(gpus: int, waiting: int, now: datetime, seed: int = 42) -> PoolRows:
    """Write the rows of a pool of ``gpus`` GPUs, and return the rows for new workloads.

    Half of the GPUs are in use. The queue has ``waiting`` jobs, which cannot start.
    """
    rng = random.Random(seed)
    Leader.objects.get_or_create(pk=1)
    pool = Pool.objects.create(slug="bench", name="Bench", kind="dynamic", created_at=now)
    people = get_user_model().objects
    owners = [people.create_user(f"bench-{number}") for number in range(TEAMS)]
    projects = []
    for number in range(TEAMS + 1):
        team = Team.objects.create(slug=f"t{number}", name=f"Team {number}", tag=f"T{number}", created_at=now)
        projects.append(Project.objects.create(team=team, slug="main", name="Main", created_at=now))
    fleet = PoolRows(pool, projects[:TEAMS], projects[TEAMS], owners, [])
    fleet.hosts, free = _hardware(pool, max(1, gpus // GPUS_PER_HOST), now)
    _quotas(fleet, gpus, now)
    _running(fleet, free, gpus // 2, rng, now)
    _waiting(fleet, waiting, rng, now)
    MaintenanceWindow.objects.bulk_create(
        MaintenanceWindow(
            host=host, start=now + 6 * HOUR, end=now + 8 * HOUR, reason="firmware", created_at=now
        )
        for host in fleet.hosts[::50]
    )
    return fleet


def _hardware(pool: Pool, count: int, now: datetime) -> tuple[list[Host], dict[Host, list[Unit]]]:
    hosts = Host.objects.bulk_create(
        [
            Host(
                pool=pool,
                name=f"bench-{n:05d}",
                labels={"rack": f"r{n // 8:04d}"},
                simulated=True,
                lease_state="alive",
                cpu_milli=128_000,
                memory_mib=1_000_000,
                last_sync_at=now,
                created_at=now,
            )
            for n in range(count)
        ],
        batch_size=BATCH,
    )
    model_of = {host: MODELS[0] if n % 3 else MODELS[1] for n, host in enumerate(hosts)}
    hosts_with_mig = set(hosts[::10])
    gpus = Gpu.objects.bulk_create(
        [
            Gpu(
                host=host,
                pool_id=host.pool_id,
                index=index,
                uuid=f"GPU-{host.name}-{index}",
                model=model_of[host],
                memory_mib=MEMORY_MIB[model_of[host]],
                compute_capability=90,
                nvlink_group=0,
                created_at=now,
            )
            for host in hosts
            for index in range(GPUS_PER_HOST)
        ],
        batch_size=BATCH,
    )
    units = Unit.objects.bulk_create(
        [
            _unit(gpu, part, SLICES_PER_GPU if gpu.host in hosts_with_mig else 1, now)
            for gpu in gpus
            for part in range(SLICES_PER_GPU if gpu.host in hosts_with_mig else 1)
        ],
        batch_size=BATCH,
    )
    free: dict[Host, list[Unit]] = {}
    for unit in units:
        if not unit.profile:
            free.setdefault(unit.gpu.host, []).append(unit)
    return hosts, free


def _unit(gpu: Gpu, part: int, parts: int, now: datetime) -> Unit:
    size = SLOTS_PER_GPU // parts
    first = gpu.first_slot + part * size
    return Unit(
        gpu=gpu,
        profile=SLICE if parts > 1 else "",
        uuid=f"{gpu.uuid}-{part}",
        slots=NumericRange(first, first + size),
        memory_mib=gpu.memory_mib // parts,
        created_at=now,
    )


def _quotas(fleet: PoolRows, gpus: int, now: datetime) -> None:
    guarantee = max(1, gpus * 3 // 8 // TEAMS) * SLOTS_PER_GPU
    rows = [(project.team, guarantee, None) for project in fleet.projects] + [
        (fleet.blocked_project.team, 0, 0)
    ]
    Quota.objects.bulk_create(
        Quota(team=t, pool=fleet.pool, model=m, guaranteed_slots=g, borrow_limit_slots=limit, updated_at=now)
        for t, g, limit in rows
        for m in MODELS
    )


def _running(
    fleet: PoolRows, free: dict[Host, list[Unit]], wanted: int, rng: random.Random, now: datetime
) -> None:
    """Create running workloads until ``wanted`` GPUs are held.

    Each holds 1, 2, 4 or 8 whole GPUs of one host.
    """
    places: list[tuple[Host, list[Unit]]] = []
    hosts, held = list(free), 0
    while held < wanted:
        host = rng.choice(hosts)
        size = rng.choices((1, 2, 4, 8), (50, 20, 15, 15))[0]
        if len(free[host]) >= size:
            places.append((host, free[host][:size]))
            del free[host][:size]
            held += size
    since = [now - timedelta(seconds=rng.randint(600, 20 * 3600)) for _ in places]
    work = Workload.objects.bulk_create(
        [
            _row(fleet, n, now, rng, units=len(units), state="running", attempt=1, started_at=at)
            for n, ((_, units), at) in enumerate(zip(places, since, strict=True))
        ],
        batch_size=1_000,
    )
    runs = Run.objects.bulk_create(
        [
            Run(workload=w, attempt=1, host=host, generation=n, placed_at=at, running_at=at, state="running")
            for n, (w, (host, _), at) in enumerate(zip(work, places, since, strict=True), start=-len(places))
        ],
        batch_size=BATCH,
    )
    Allocation.objects.bulk_create(
        [
            Allocation(
                run=run,
                workload=w,
                project_id=w.project_id,
                unit=unit,
                slots=unit.slots,
                period=DateTimeTZRange(at, None),
            )
            for run, w, (_, units), at in zip(runs, work, places, since, strict=True)
            for unit in units
        ],
        batch_size=BATCH,
    )
    Command.objects.bulk_create(
        [Command(host_id=run.host_id, run=run, verb="start", created_at=now) for run in runs],
        batch_size=BATCH,
    )


def _waiting(fleet: PoolRows, count: int, rng: random.Random, now: datetime) -> None:
    Workload.objects.bulk_create(
        [
            _row(
                fleet,
                n,
                now,
                rng,
                units=rng.choice((1, 2, 4, 8)),
                project=fleet.blocked_project,
                state="queued",
            )
            for n in range(count)
        ],
        batch_size=1_000,
    )


def _row(fleet: PoolRows, number: int, now: datetime, rng: random.Random, **columns: Any) -> Workload:
    team_index = number % TEAMS
    limit = rng.choice((1, 4, 24, 72)) * 3600
    return Workload(
        kind="job",
        type="training",
        name=f"work {number}",
        pool=fleet.pool,
        owner=fleet.owners[team_index],
        command="true",
        **{"project": fleet.projects[team_index], **columns},
        models_wanted=[MODELS[number % 2]],
        max_runtime_seconds=limit,
        predicted_seconds=rng.randint(limit // 10, limit),
        preemptible=rng.random() < 0.7,
        cpu_milli=4_000,
        memory_mib=32_000,
        submitted_at=now - timedelta(seconds=rng.randint(0, 30 * 3600)),
        queued_at=now,
    )


def queue_jobs(fleet: PoolRows, count: int, now: datetime, first: int = 0) -> list[Workload]:
    """Queue ``count`` jobs of one GPU that can start, and return them."""
    return [fleet.queue(now, number) for number in range(first, first + count)]
