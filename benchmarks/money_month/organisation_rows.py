"""Create an organisation with its pools, hosts, teams, projects, people, prices and cost centres.

One seed determines everything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from django.contrib.auth import get_user_model
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange, NumericRange

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import (
    BoundUnit,
    Gpu,
    Host,
    HostStateChange,
    Pool,
    Project,
    Reservation,
    Team,
    Unit,
)
from scheduler.state.states import ReservationState
from telemetry.models import CostCentre, CostCentreShare, HostHoursRecorded, Price

GPUS_PER_HOST = 8
SLICES_PER_GPU = 7
MODELS = {"H100-80GB": ("2.1034", "2.7"), "A100-40GB": ("1.2507", "1.6")}
PROJECTS_PER_TEAM = 10
PEOPLE_PER_PROJECT = 2
# One in this many hosts is split into slices, is reserved for the whole month, or is in the dedicated pool.
SLICED_EVERY, RESERVED_EVERY, DEDICATED_EVERY = 20, 25, 10
# One in this many hosts has a maintenance, or is silent for an hour.
MAINTENANCE_EVERY, SILENT_EVERY = 30, 40
BATCH = 5_000


@dataclass
class BusyHost:
    """A host whose units are held during the month. ``units`` are (id, first slot, last slot)."""

    id: int
    pool: int
    model: str
    sliced: bool
    units: list[tuple[int, int, int]] = field(default_factory=list)
    reservation: int | None = None
    project: int | None = None  # the only project on a reserved host


@dataclass
class GeneratedOrganisation:
    """The rows to which the work of the month refers. ``owners`` are the ids of people by project id."""

    start: datetime
    end: datetime
    hosts: list[BusyHost]
    projects: list[int]
    owners: dict[int, list[int]]


def make_organisation(
    gpus: int, projects: int, start: datetime, end: datetime, rng: random.Random
) -> GeneratedOrganisation:
    """Write the rows of an organisation with ``gpus`` GPUs that exist from ``start`` on."""
    owners = _projects_and_people(projects, start, rng)
    ids = sorted(owners)
    pools = [
        Pool.objects.create(slug=f"pool-{n}", name=f"Pool {n}", kind="dynamic", created_at=start)
        for n in range(3)
    ]
    team = Project.objects.get(pk=ids[0]).team
    dedicated = Pool.objects.create(
        slug="dedicated", name="Dedicated", kind="static", team=team, created_at=start
    )
    _prices(pools[0], start, end)
    _cost_centres(ids, dedicated, start, end, rng)
    hosts = _hosts(gpus // GPUS_PER_HOST, pools, dedicated, start)
    _reservations(hosts, ids, owners, start, end, rng)
    _outages(hosts, start, end, rng)
    until = end + timedelta(hours=1)
    HostHoursRecorded.objects.update_or_create(pk=1, defaults={"until": until})
    return GeneratedOrganisation(start, end, hosts, ids, owners)


def _projects_and_people(count: int, start: datetime, rng: random.Random) -> dict[int, list[int]]:
    """Return the ids of the owners of work by project id."""
    teams = Team.objects.bulk_create(
        Team(slug=f"team-{n}", name=f"Team {n}", tag=f"T{n % 100}", created_at=start)
        for n in range(max(1, count // PROJECTS_PER_TEAM))
    )
    users = get_user_model()
    people = users._default_manager.bulk_create(
        [users(username=f"person-{n}", password="!") for n in range(count * PEOPLE_PER_PROJECT)],
        batch_size=BATCH,
    )
    projects = Project.objects.bulk_create(
        Project(team=teams[n % len(teams)], slug=f"project-{n}", name=f"Project {n}", created_at=start)
        for n in range(count)
    )
    return {
        project.pk: [person.pk for person in people[n * PEOPLE_PER_PROJECT : (n + 1) * PEOPLE_PER_PROJECT]]
        for n, project in enumerate(projects)
    }


def _prices(special: Pool, start: datetime, end: datetime) -> None:
    """Price each model, change one price in the middle of the month, and give one pool its own price."""
    middle = start + (end - start) / 2
    rows: list[tuple[Pool | None, str, str, str, datetime]] = [
        (None, model, cost, price, start) for model, (cost, price) in MODELS.items()
    ]
    rows.append((None, "H100-80GB", "2.1034", "2.85", middle.replace(minute=17, second=5, microsecond=0)))
    rows.append((special, "A100-40GB", "1.2507", "1.2507", start))
    Price.objects.bulk_create(
        Price(
            pool=pool,
            model=model,
            cost_per_gpu_hour=Decimal(cost),
            price_per_gpu_hour=Decimal(price),
            valid_from=since,
            created_at=start,
        )
        for pool, model, cost, price, since in rows
    )


def _cost_centres(
    projects: list[int], dedicated: Pool, start: datetime, end: datetime, rng: random.Random
) -> None:
    """Name a cost centre for each project. The first cost centre also pays for the dedicated pool.

    In the middle of the month, about one project in five changes to another cost centre.
    """
    codes = [f"CC-{4100 + n}" for n in range(len(projects))]
    middle = (start + (end - start) / 2).replace(hour=0, minute=0, second=0, microsecond=0)
    rows = [CostCentreShare(pool=dedicated, code=codes[0], valid_from=start, created_at=start)]
    for project, code in zip(projects, codes, strict=True):
        rows.append(CostCentreShare(project_id=project, code=code, valid_from=start, created_at=start))
        if rng.random() < 0.2:
            rows.append(
                CostCentreShare(
                    project_id=project, code=rng.choice(codes), valid_from=middle, created_at=start
                )
            )
    CostCentre.objects.bulk_create(CostCentre(code=code, name=code, created_at=start) for code in codes)
    CostCentreShare.objects.bulk_create(rows)


def _hosts(count: int, pools: list[Pool], dedicated: Pool, start: datetime) -> list[BusyHost]:
    names = list(MODELS)
    hosts = Host.objects.bulk_create(
        [
            Host(
                pool=dedicated if n % DEDICATED_EVERY == 1 else pools[n % len(pools)],
                name=f"host-{n:05d}",
                lease_state="alive",
                created_at=start,
            )
            for n in range(count)
        ],
        batch_size=BATCH,
    )
    gpus = Gpu.objects.bulk_create(
        [
            Gpu(
                host=host,
                pool_id=host.pool_id,
                index=index,
                uuid=f"GPU-{host.name}-{index}",
                model=names[n % len(names)],
                memory_mib=81_920,
                created_at=start,
            )
            for n, host in enumerate(hosts)
            for index in range(GPUS_PER_HOST)
        ],
        batch_size=BATCH,
    )
    busy = {
        host.pk: BusyHost(host.pk, host.pool_id, names[n % len(names)], n % SLICED_EVERY == 2)
        for n, host in enumerate(hosts)
    }
    units = [
        Unit(
            gpu=gpu,
            profile="1g.10gb" if parts > 1 else "",
            uuid=f"{gpu.uuid}-{part}",
            slots=NumericRange(gpu.first_slot + part * size, gpu.first_slot + (part + 1) * size),
            memory_mib=gpu.memory_mib // parts,
            created_at=start,
        )
        for gpu in gpus
        for parts in (SLICES_PER_GPU if busy[gpu.host_id].sliced else 1,)
        for size in (SLOTS_PER_GPU // parts,)
        for part in range(parts)
    ]
    for unit in Unit.objects.bulk_create(units, batch_size=BATCH):
        busy[unit.gpu.host_id].units.append((unit.pk, unit.slots.lower, unit.slots.upper))
    return list(busy.values())


def _reservations(
    hosts: list[BusyHost],
    projects: list[int],
    owners: dict[int, list[int]],
    start: datetime,
    end: datetime,
    rng: random.Random,
) -> None:
    """Reserve some hosts for one project each, for the whole month."""
    for host in hosts[3::RESERVED_EVERY]:
        host.project = rng.choice(projects)
        row = Reservation.objects.create(
            pool_id=host.pool,
            project_id=host.project,
            owner_id=owners[host.project][0],
            name=f"booking of host {host.id}",
            units=GPUS_PER_HOST,
            models_wanted=[host.model],
            start=start,
            end=end,
            state=ReservationState.OVER,
            first_used_at=start,
            ended_at=end,
            created_at=start,
        )
        host.reservation = row.pk
        BoundUnit.objects.bulk_create(
            BoundUnit(
                reservation=row,
                unit_id=unit,
                slots=NumericRange(low, high),
                period=DateTimeTZRange(start, end),
            )
            for unit, low, high in host.units
        )


def _outages(hosts: list[BusyHost], start: datetime, end: datetime, rng: random.Random) -> None:
    """Put some hosts into maintenance for four hours, and let some be silent for one hour."""
    rows = [_state(host, start) for host in hosts]
    length = end - start
    for every, hours, states in (
        (MAINTENANCE_EVERY, 4, {"admin_state": "maintenance"}),
        (SILENT_EVERY, 1, {"lease_state": "silent"}),
    ):
        for host in hosts[5::every]:
            at = start + length * rng.uniform(0.05, 0.9)
            rows += [_state(host, at, **states), _state(host, at + timedelta(hours=hours))]
    HostStateChange.objects.bulk_create(rows, batch_size=BATCH)


def _state(host: BusyHost, at: datetime, **states: str) -> HostStateChange:
    columns = {"lease_state": "alive", "admin_state": "in_service", "repair_state": "well", **states}
    return HostStateChange(host_id=host.id, at=at, **columns)
