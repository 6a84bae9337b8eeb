"""Write the rows that are needed so that every metric of the portal has a value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from agent.protocol import SampleBatch
from scheduler.models import Gpu, Host, Leader, Workload
from telemetry.ingest import redis_client
from telemetry.ingest.agent_api import enqueue_batch
from telemetry.ingest.samples import drain_stream
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.models import Budget, BudgetForecast, HealthEvent, HealthRule, ReadingFault, Stray
from telemetry.money.billing_months import month_of
from telemetry.money.charges import charge_all_gpus
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.telemetry.rows import alert_of, batch, hold, price, reservation, workload
from tests.world import A100, H100, MIG, TeamOfWorld, World, make_host, units_of

READINGS = {
    "utilisation": 50.0,
    "sm_active": 40.0,
    "tensor_active": 10.0,
    "memory_used_mib": 1024,
    "power_w": 300.0,
    "energy_mj": 9_000_000,
    "temperature_c": 61.0,
    "sm_clock_mhz": 1755,
    "processes": 2,
}
MEASURED_GPUS = 4  # of host alpha
SAMPLE_SECONDS = 10


def fill_monitored_world(
    world: World, now: dt.datetime, samples_ahead: dt.timedelta = dt.timedelta(0)
) -> None:
    """Write work, a queue, closed hosts, samples, events and money as of ``now``.

    The last sample is taken ``samples_ahead`` after ``now``, so that the readings stay current until the end
    of a slow test.
    """
    _write_work(world, now)
    _write_trouble(world, now)
    _write_samples(world, now, samples_ahead)
    _write_money(world, now)
    Leader.objects.update(last_cycle_at=now - dt.timedelta(seconds=2), last_cycle_seconds=0.05)


def _write_work(world: World, now: dt.datetime) -> None:
    since = now - dt.timedelta(hours=4)
    alpha, beta = units_of(world.hosts["alpha"]), units_of(world.hosts["beta"])
    hold(workload(world, world.vision), alpha[0], since)
    hold(workload(world, world.vision, kind="notebook"), alpha[1], since)
    hold(workload(world, world.language), units_of(world.hosts["gamma"], MIG)[0], since)
    bound = reservation(world, world.robotics, beta[:2], since, now + dt.timedelta(hours=4))
    hold(workload(world, world.robotics, reservation=bound), beta[0], since, reservation=bound)
    for team, reason, minutes in (
        (world.vision, "waits_for_units", 40),
        (world.language, "waits_for_units", 10),
        (world.robotics, "", 1),
    ):
        queued_at = now - dt.timedelta(minutes=minutes)
        workload(world, team, state="queued", units=2, hosts=2, reason_code=reason, queued_at=queued_at)
    workload(world, world.vision, state="ended", outcome="finished", ended_at=now)


def _write_trouble(world: World, now: dt.datetime) -> None:
    make_host("epsilon", world.shared, [H100] * 2, now)
    Host.objects.filter(name="epsilon").update(lease_state="silent", disk_full=True)
    Host.objects.filter(name="delta").update(admin_state="cordoned")
    Gpu.objects.filter(host__name="beta", index=7).update(repair_state="out")
    alpha = world.hosts["alpha"]
    HealthRule.objects.get_or_create(
        code="xid:79", defaults={"meaning": "gone", "action": "cordon", "source": "vendor"}
    )
    for number, code in enumerate(("xid:79", "xid:79", "made:up")):
        HealthEvent.objects.create(
            host=alpha, event_id=f"event-{number}", source="nvml", code=code, at=now, received_at=now
        )
    alert_of(Workload.objects.earliest("pk"))
    gpu = alpha.gpus.get(index=0)
    Stray.objects.create(host=alpha, gpu=gpu, pid=4242, started=1, first_seen=now, last_seen=now)
    ReadingFault.objects.create(
        host=alpha,
        day=now.astimezone(dt.UTC).date(),
        source="nvml",
        reading="power_w",
        kind="out_of_bounds",
        count=3,
        last_at=now,
    )


def _write_samples(world: World, now: dt.datetime, ahead: dt.timedelta) -> None:
    """Write samples of the last three minutes of the first GPUs of host alpha, and roll them up."""
    alpha, start = world.hosts["alpha"], now - dt.timedelta(minutes=3)
    count = int((now + ahead - start).total_seconds()) // SAMPLE_SECONDS
    rows = [
        row
        for unit in units_of(alpha)[:MEASURED_GPUS]
        for row in batch(1, unit, start, count, every=SAMPLE_SECONDS, **READINGS).rows
    ]
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)
    enqueue_batch(alpha.pk, SampleBatch(sequence=1, rows=rows), now)
    drain_stream(redis_client.redis_client(), now)
    roll_up_due_buckets(now)


def _write_money(world: World, now: dt.datetime) -> None:
    since = now - dt.timedelta(hours=6)
    Gpu.objects.update(created_at=since)
    for model in (H100, A100):
        price(model, "2.00", since=since - dt.timedelta(days=1))
    charge_all_gpus(now)
    for team, amount in ((world.vision, "10.00"), (world.language, "900.00")):
        _write_budget(team, Decimal(amount), now)


def _write_budget(team: TeamOfWorld, amount: Decimal, now: dt.datetime) -> None:
    budget = Budget.objects.create(team=team.team, month=month_of(now), amount=amount)
    BudgetForecast.objects.create(budget=budget, expected=amount + 5, low=amount, high=amount + 9, as_of=now)
