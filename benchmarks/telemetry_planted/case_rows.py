"""Create the pool, its GPUs, and the jobs and reservations of planted cases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from benchmarks.harness.sample_fleet import GPUS_PER_HOST, write_whole_gpus
from benchmarks.telemetry_planted.cases import PERIOD_MINUTES, PlantedCase


def write_cases(cases: Sequence[PlantedCase], now: datetime) -> None:
    """Create the pool, its GPUs, and the jobs and reservations of the cases."""
    from django.contrib.auth import get_user_model

    from scheduler.models import Pool, Project, Team

    start = now - timedelta(minutes=PERIOD_MINUTES)
    pool = Pool.objects.create(slug="planted", name="Planted", kind="dynamic", created_at=start)
    team = Team.objects.create(slug="planted", name="Planted", tag="PLA", created_at=start)
    project = Project.objects.create(team=team, slug="planted", name="Planted", created_at=start)
    owner = get_user_model().objects.create_user("planted")
    units = iter(_write_units(pool, sum(case.gpus for case in cases), start))
    for number, case in enumerate(cases):
        case.units = [next(units) for _ in range(case.gpus)]
        fields = {"pool": pool, "project": project, "owner": owner, "name": f"case {number}"}
        _write_case(case, number, fields, start, now)


def _write_units(pool: Any, gpus: int, start: datetime) -> list[Any]:
    from scheduler.models import Host

    names = [f"planted-{number}" for number in range(-(-gpus // GPUS_PER_HOST))]
    hosts = Host.objects.bulk_create(
        [Host(pool=pool, name=name, lease_state="alive", created_at=start) for name in names]
    )
    return write_whole_gpus(pool, hosts, gpus, start)


def _write_case(
    case: PlantedCase, number: int, fields: dict[str, Any], start: datetime, now: datetime
) -> None:
    from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

    from scheduler.models import Allocation, BoundUnit, Reservation, Run, Workload

    since, reservation = start + timedelta(minutes=case.since), None
    if case.reserved:
        end = now + timedelta(hours=2)
        reservation = Reservation.objects.create(
            **fields, units=case.gpus, start=since, end=end, state="active", created_at=start
        )
        for unit in case.units:
            period = DateTimeTZRange(since, end)
            BoundUnit.objects.create(reservation=reservation, unit=unit, slots=unit.slots, period=period)
        case.subject = ("reservation", reservation.pk)
        if not case.used:
            return
    work = Workload.objects.create(
        **fields,
        kind="job",
        type="training",
        units=case.gpus,
        reservation=reservation,
        state="queued" if case.used == "waiting" else "running",
        attempt=1,
        max_runtime_seconds=86_400,
        predicted_seconds=86_400,
        submitted_at=since,
        queued_at=since,
    )
    if not case.reserved:
        case.subject = ("workload", work.pk)
    if case.used == "waiting":
        return
    run = Run.objects.create(
        workload=work,
        attempt=1,
        host=case.units[0].gpu.host,
        generation=number + 1,
        placed_at=since,
        running_at=since,
        state="running",
    )
    Allocation.objects.bulk_create(
        Allocation(
            run=run,
            workload=work,
            project=work.project,
            unit=unit,
            reservation=reservation,
            slots=unit.slots,
            period=DateTimeTZRange(since, None),
        )
        for unit in case.units
    )
