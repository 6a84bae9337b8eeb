"""Create sample workloads and reservations for tests of pages, with the rows that the engine writes."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.test import Client
from django.utils import timezone

from portal.models import Submission, User
from scheduler.core.reasons import ReasonCode
from scheduler.models import Allocation, Reservation, Run, Workload
from scheduler.state.states import RunState, WorkloadState
from tests.world import H100, TeamOfWorld, World, units_of

MADE = (Workload, Reservation, Submission)


def signed_in(user: User) -> Client:
    """Return a browser in which this user has signed in."""
    client = Client()
    client.force_login(user)
    return client


def queue_job(
    world: World, team: TeamOfWorld, name: str, *, kind: str = "job", units: int = 1, **also: Any
) -> Workload:
    """Create a workload of the team's member that has been queued in the shared pool for ten minutes."""
    now = timezone.now()
    values: dict[str, Any] = {
        "kind": kind,
        "type": "training" if kind == "job" else "interactive",
        "name": name,
        "pool": world.shared,
        "project": team.project,
        "owner": team.member,
        "command": "true" if kind == "job" else "",
        "preemptible": kind == "job",
        "max_runtime_seconds": 4 * 3600,
        "predicted_seconds": 4 * 3600,
        "units": units,
        "models_wanted": [H100],
        "submitted_at": now - dt.timedelta(minutes=10),
        "queued_at": now - dt.timedelta(minutes=10),
        **also,
    }
    return Workload.objects.create(**values)


def make_waiting(world: World, team: TeamOfWorld, name: str, *, units: int = 8, **also: Any) -> Workload:
    """Create a queued workload with a refusal of the engine; it is second in the queue of its pool."""
    numbers = {"wanted": units, "free": 2, "model": H100}
    return queue_job(
        world,
        team,
        name,
        units=units,
        position=2,
        reason_code=ReasonCode.WAITS_FOR_UNITS,
        reason_numbers=numbers,
        expected_start=timezone.now() + dt.timedelta(hours=2),
        **also,
    )


def run_job(
    world: World, team: TeamOfWorld, name: str, *, host: str, gpus: list[int], kind: str = "job", **also: Any
) -> Workload:
    """Create a workload that has run on these GPUs for half an hour. A notebook is ready."""
    since = timezone.now() - dt.timedelta(minutes=30)
    job = queue_job(world, team, name, kind=kind, units=len(gpus), **also)
    start(world, job, host=host, gpus=gpus, since=since)
    return job


def start(world: World, job: Workload, *, host: str, gpus: list[int], since: dt.datetime) -> None:
    """Start the first run of the workload at `since`."""
    job.state, job.attempt, job.started_at = WorkloadState.RUNNING, 1, since
    job.save()
    run = Run.objects.create(
        workload=job,
        attempt=1,
        host=world.hosts[host],
        generation=job.pk,
        state=RunState.RUNNING,
        placed_at=since,
        starting_at=since,
        running_at=since,
        ready_at=since if job.kind == "notebook" else None,
    )
    for unit in units_of(world.hosts[host]):
        if unit.gpu.index in gpus:
            Allocation.objects.create(
                run=run,
                workload=job,
                project=job.project,
                unit=unit,
                slots=unit.slots,
                period=DateTimeTZRange(since, None),
            )


def reserve(
    world: World, team: TeamOfWorld, name: str, *, hours: float, length: float, units: int = 2
) -> Reservation:
    """Create a confirmed reservation of H100s that begins in `hours` and lasts `length` hours."""
    now = timezone.now()
    return Reservation.objects.create(
        pool=world.shared,
        project=team.project,
        owner=team.member,
        name=name,
        units=units,
        models_wanted=[H100],
        start=now + dt.timedelta(hours=hours),
        end=now + dt.timedelta(hours=hours + length),
        created_at=now,
    )
