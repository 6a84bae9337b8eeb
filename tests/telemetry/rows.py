"""Create the rows that telemetry reads, as the engine and the agents would write them."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal
from typing import Any

from django.db import connection, models
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from agent.protocol import SampleBatch, SampleRow
from scheduler.models import (
    Allocation,
    BoundUnit,
    Gpu,
    Host,
    HostStateChange,
    Pool,
    Reservation,
    Run,
    Unit,
    Workload,
)
from telemetry.core.rollup import UsageSums
from telemetry.models import (
    Alert,
    BillingCurrency,
    Charge,
    CostCentre,
    CostCentreShare,
    Price,
    PriceFactor,
    Rollup,
)
from telemetry.money.billing_months import month_bounds
from telemetry.rollups.storage import ROLLUP_MEASURES, StoredUse, pack_rollups, write_rollups
from tests.world import A100, H100, TeamOfWorld, World, world_fixture

_generations = itertools.count(1_000_000)


def at(hour: int, minute: int = 0, second: int = 0, *, day: int = 2) -> dt.datetime:
    """Return a UTC time in March 2026. Day 2 is the Monday on which the world begins at 09:00."""
    return dt.datetime(2026, 3, day, hour, minute, second, tzinfo=dt.UTC)


def price(
    model: str,
    cost: str,
    list_price: str | None = None,
    *,
    since: dt.datetime,
    pool: Pool | None = None,
    currency: str = "EUR",
) -> Price:
    """Create an entry of the rate card. Without a list price, the cost is charged."""
    return Price.objects.create(
        pool=pool,
        model=model,
        currency=currency,
        cost_per_gpu_hour=Decimal(cost),
        price_per_gpu_hour=Decimal(list_price or cost),
        valid_from=since,
        created_at=since,
    )


def price_factor(
    factor: str,
    *,
    since: dt.datetime,
    pool: Pool | None = None,
    priority: int | None = None,
    workload_type: str = "",
) -> PriceFactor:
    """Create a factor on the price of work of a priority or of a workload type, valid from ``since``."""
    return PriceFactor.objects.create(
        pool=pool,
        priority=priority,
        workload_type=workload_type,
        factor=Decimal(factor),
        valid_from=since,
        created_at=since,
    )


def billing_currency(currency: str, first_month: dt.date) -> BillingCurrency:
    """Create the currency of the months from ``first_month`` on."""
    start = month_bounds(first_month)[0]
    return BillingCurrency.objects.create(
        currency=currency, first_month=first_month, valid_from=start, created_at=start
    )


def cost_centre(team: TeamOfWorld, code: str, since: dt.datetime) -> CostCentreShare:
    """Create the cost centre of a team's project, valid from ``since``."""
    return CostCentreShare.objects.create(project=team.project, code=code, valid_from=since, created_at=since)


def directory(*codes: str, since: dt.datetime | None = None, **fields: Any) -> list[CostCentre]:
    """Create the entries of cost centres in the directory. ``fields`` are columns of each."""
    created = since or at(0, day=1)
    return [CostCentre.objects.create(code=code, created_at=created, **fields) for code in codes]


def split(
    payer: TeamOfWorld | Pool, since: dt.datetime, created: dt.datetime | None = None, **percents: str
) -> None:
    """Create the split of a team's project or of a pool, as percents by code; ``_`` stands for a dash."""
    subject = {"pool": payer} if isinstance(payer, Pool) else {"project": payer.project}
    for code, percent in percents.items():
        CostCentreShare.objects.create(
            **subject,
            code=code.replace("_", "-"),
            percent=Decimal(percent),
            valid_from=since,
            created_at=created or since,
        )


def pool_cost_centre(pool: Pool, code: str, since: dt.datetime) -> CostCentreShare:
    """Create the cost centre of the unused time of a dedicated pool, valid from ``since``."""
    return CostCentreShare.objects.create(pool=pool, code=code, valid_from=since, created_at=since)


def workload(
    world: World, team: TeamOfWorld, *, kind: str = "job", pool: Pool | None = None, **fields: Any
) -> Workload:
    """Create a workload owned by the team's first member. ``fields`` override the default values."""
    values: dict[str, Any] = {
        "kind": kind,
        "type": "interactive" if kind == "notebook" else "training",
        "name": f"{team.team.slug} {kind}",
        "pool": pool or world.shared,
        "project": team.project,
        "owner": team.member,
        "units": 1,
        "max_runtime_seconds": 86_400,
        "predicted_seconds": 86_400,
        "submitted_at": world.now,
        "queued_at": world.now,
        "state": "running",
    }
    return Workload.objects.create(**(values | fields))


def hold(
    work: Workload,
    unit: Unit,
    start: dt.datetime,
    end: dt.datetime | None = None,
    *,
    end_code: str = "",
    checkpoint: dt.datetime | None = None,
    reservation: Reservation | None = None,
) -> Allocation:
    """Create a run of ``work`` that holds ``unit`` over ``[start, end)``, or until now if ``end`` is None."""
    attempt = Run.objects.filter(workload=work).count() + 1
    Workload.objects.filter(pk=work.pk).update(attempt=attempt)
    run = Run.objects.create(
        workload=work,
        attempt=attempt,
        host=unit.gpu.host,
        generation=next(_generations),
        placed_at=start,
        running_at=start,
        ended_at=end,
        outcome=end_code,
        checkpoint_at=checkpoint,
        state="ended" if end else "running",
    )
    return Allocation.objects.create(
        run=run,
        workload=work,
        project=work.project,
        unit=unit,
        reservation=reservation,
        slots=unit.slots,
        period=DateTimeTZRange(start, end),
        end_code=end_code,
    )


def end_hold(
    allocation: Allocation, end: dt.datetime, end_code: str, checkpoint: dt.datetime | None = None
) -> None:
    """End the run and the allocation, as after the agent has confirmed the stop."""
    Run.objects.filter(pk=allocation.run_id).update(
        ended_at=end, outcome=end_code, checkpoint_at=checkpoint, state="ended"
    )
    period = DateTimeTZRange(allocation.period.lower, end)
    Allocation.objects.filter(pk=allocation.pk).update(period=period, end_code=end_code)


def reservation(
    world: World, team: TeamOfWorld, units: list[Unit], start: dt.datetime, end: dt.datetime
) -> Reservation:
    """Create an active reservation with its units bound."""
    row = Reservation.objects.create(
        pool=world.shared,
        project=team.project,
        owner=team.member,
        name="sprint",
        units=len(units),
        start=start,
        end=end,
        state="active",
        created_at=world.now,
    )
    for unit in units:
        BoundUnit.objects.create(
            reservation=row, unit=unit, slots=unit.slots, period=DateTimeTZRange(start, end)
        )
    return row


def host_state(
    host: Host, moment: dt.datetime, *, lease: str = "alive", admin: str = "in_service", repair: str = "well"
) -> None:
    """Record the host's states from ``moment`` on."""
    HostStateChange.objects.create(
        host=host, lease_state=lease, admin_state=admin, repair_state=repair, at=moment
    )


def alert_of(work: Workload, **values: Any) -> Alert:
    """Create an alert about a workload."""
    columns = {"kind": "held_idle", "value": 100.0, "evidence": {"gpus": 1, "minutes": 30}, "began_at": at(9)}
    return Alert.objects.create(
        pool=work.pool, workload=work, subject=f"workload:{work.pk}", **(columns | values)
    )


def batch(
    sequence: int, unit: Unit, start: dt.datetime, count: int, *, every: float = 10, **reading: Any
) -> SampleBatch:
    """Return a batch of ``count`` samples of one unit, ``every`` seconds apart, beginning at ``start``."""
    values: dict[str, Any] = {"utilisation": 50.0, "memory_used_mib": 1000, "processes": 1} | reading
    return SampleBatch(
        sequence=sequence,
        rows=[
            SampleRow(unit=unit.uuid, ts=start.timestamp() + number * every, **values)
            for number in range(count)
        ],
    )


def begin_charges_at(world: World, moment: dt.datetime) -> None:
    """Move the world's present, and with it the start of all charges, to ``moment``.

    A test then charges only the days that it is about, which is faster than a month.
    """
    Gpu.objects.update(created_at=moment)
    world.now = moment


def insert_copy(line: Charge, **changes: Any) -> Charge:
    """Insert a copy of a charge line, with changes."""
    columns = {field.attname: getattr(line, field.attname) for field in line._meta.concrete_fields}
    return Charge.objects.create(**(columns | {"id": None} | changes))


def change_in_place(row: models.Model, **changes: Any) -> None:
    """Change a row that triggers protect, with the rights of the owner and without the triggers."""
    table = row._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        [role] = cursor.fetchone()
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET LOCAL ROLE NONE")
        cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        type(row)._default_manager.filter(pk=row.pk).update(**changes)
        cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        cursor.execute("SELECT set_config('role', %s, true)", [role])


def write_rates(world: World) -> World:
    """Return the world with a rate card (H100 2.40 and A100 1.10 an hour) and cost centres since 1 March.

    The unused time of the static pool is charged to CC-110.
    """
    for model, cost in ((H100, "2.40"), (A100, "1.10")):
        price(model, cost, since=at(0, day=1))
    for each, code in ((world.vision, "CC-100"), (world.language, "CC-200"), (world.robotics, "CC-300")):
        cost_centre(each, code, at(0, day=1))
    pool_cost_centre(world.static, "CC-110", at(0, day=1))
    return world


rates = world_fixture(write_rates)


def store_rollup(
    resolution: int,
    bucket: dt.datetime,
    unit: Unit,
    allocation: Allocation | None = None,
    simulated: bool = False,
    **measures: Any,
) -> None:
    """Write the rollup of a unit that is held for the whole bucket. ``measures`` override values.

    It replaces other rollups of the unit in this bucket.
    """
    use = UsageSums(held_seconds=resolution)
    for name, value in measures.items():
        setattr(use, name, value)
    holder = None if allocation is None else allocation.pk
    write_rollups(resolution, [StoredUse(bucket, unit.gpu.host_id, unit.pk, holder, use, simulated)])


def measure_sm_activity(share: float) -> None:
    """Store ``share`` as the SM activity of the covered time of all rollups."""
    for resolution in Rollup.Resolution:
        uses = []
        for row in Rollup.objects.filter(resolution=resolution):
            use = UsageSums(**{name: getattr(row, name) for name in ROLLUP_MEASURES})
            use.sm_active_seconds = row.covered_seconds * share
            uses.append(
                StoredUse(row.bucket, row.host_id, row.unit_id, row.allocation_id, use, row.simulated)
            )
        write_rollups(resolution, uses)


def pack_all(until: dt.datetime) -> None:
    """Pack the rollups of hours and days that ended before ``until``."""
    for resolution in Rollup.Resolution:
        pack_rollups(resolution, until)


def delete_rollups(*resolutions: int) -> None:
    """Delete the stored rollups of these resolutions; of all if none is given."""
    tables = {60: "minutes", 3600: "hours", 86_400: "days"}
    with connection.cursor() as cursor:
        for resolution in resolutions or tables:
            cursor.execute(f"DELETE FROM telemetry_rollup{tables[resolution]}")
            cursor.execute("DELETE FROM telemetry_rollupopen WHERE resolution = %s", [resolution])
