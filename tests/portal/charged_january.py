"""Create charges: January 2026, in which vision held four H100 for ten hours, and single lines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from scheduler.models import Allocation, Gpu, Host, HostStateChange, Run, Unit, Workload
from scheduler.state.states import RunState, WorkloadState
from telemetry.models import Charge, CostCentreShare, Price, Statement, UnusualSpend
from telemetry.money.charges import charge_all_gpus
from tests.world import H100, World, world_fixture

START = datetime(2026, 1, 1, tzinfo=UTC)
MONTH = "2026-01"
HELD = (START + timedelta(days=3), START + timedelta(days=3, hours=10))


def write_charged(world: World) -> Workload:
    """Charge January: vision held 4 H100 for 10 hours, and everything has a price."""
    for model in set(Gpu.objects.values_list("model", flat=True)):
        Price.objects.create(
            model=model,
            cost_per_gpu_hour=Decimal("2.0301"),
            price_per_gpu_hour=Decimal("2.5"),
            valid_from=START,
            created_at=START,
        )
    for team in world.teams:
        CostCentreShare.objects.create(
            project=team.project, code=f"CC-{team.team.slug}", valid_from=START, created_at=START
        )
    CostCentreShare.objects.create(pool=world.static, code="CC-static", valid_from=START, created_at=START)
    Gpu.objects.update(created_at=START)
    Host.objects.update(created_at=START)
    for host in Host.objects.all():
        HostStateChange.objects.create(
            host=host, lease_state="alive", admin_state="in_service", repair_state="well", at=START
        )
    workload = Workload.objects.create(
        kind="job",
        type="training",
        name="fit",
        pool=world.shared,
        project=world.vision.project,
        owner=world.vision.member,
        units=4,
        models_wanted=[H100],
        max_runtime_seconds=36_000,
        predicted_seconds=36_000,
        state=WorkloadState.ENDED,
        submitted_at=HELD[0],
        queued_at=HELD[0],
        started_at=HELD[0],
        ended_at=HELD[1],
        outcome="finished",
        attempt=1,
    )
    run = Run.objects.create(
        workload=workload,
        attempt=1,
        host=world.hosts["alpha"],
        generation=1,
        state=RunState.ENDED,
        placed_at=HELD[0],
        ended_at=HELD[1],
        outcome="finished",
    )
    for unit in Unit.objects.filter(gpu__host=world.hosts["alpha"]).order_by("gpu__index")[:4]:
        Allocation.objects.create(
            run=run,
            workload=workload,
            project=workload.project,
            unit=unit,
            slots=unit.slots,
            period=DateTimeTZRange(*HELD),
            end_code="finished",
        )
    charge_all_gpus(now=START + timedelta(days=40))
    return workload


charged = world_fixture(write_charged)


def charge_of(workload: Workload, gpu: Gpu) -> Charge:
    """Charge a workload for the hour before its submission, on a GPU that has no price."""
    return Charge.objects.create(
        pool_id=workload.pool_id,
        month=workload.submitted_at.date().replace(day=1),
        bucket="used",
        day=(workload.submitted_at - timedelta(hours=1)).date(),
        start=workload.submitted_at - timedelta(hours=1),
        end=workload.submitted_at,
        slots=840,
        slot_seconds=840 * 3600,
        gpu=gpu,
        model=gpu.model,
        workload=workload,
        workload_name=workload.name,
        workload_type=workload.type,
        team_id=workload.project.team_id,
        project_id=workload.project_id,
        user_id=workload.owner_id,
        user_name=workload.owner.username,
        cost=0,
        charged=0,
        created_at=workload.submitted_at,
    )


def unusual_spend_of(workload: Workload) -> UnusualSpend:
    """Create an unusual day of a workload's owner in the month of its submission."""
    day = workload.submitted_at.date()
    statement, _ = Statement.objects.get_or_create(month=day.replace(day=1))
    return UnusualSpend.objects.create(
        statement=statement,
        kind="high_day",
        team_id=workload.project.team_id,
        project_id=workload.project_id,
        user_id=workload.owner_id,
        workload_name=workload.name,
        subject=workload.name,
        first_day=day,
        last_day=day,
        currency="EUR",
        amount=Decimal("412.80"),
        usual=Decimal("70.00"),
        figures={"project": workload.project.name, "gpu_hours": 172.0, "curve": ["70.00", "412.80"]},
        found_at=workload.submitted_at,
    )
