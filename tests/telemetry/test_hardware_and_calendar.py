"""Test telemetry across changes of the hardware (driver, GPU, MIG) and of the calendar."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import connection

from agent.protocol import GpuCountersSeen, SampleBatch
from portal.reads.utilisation.period import read_period
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Gpu, Unit
from telemetry.alerts.evaluate import evaluate_alerts
from telemetry.ingest import redis_client
from telemetry.ingest.agent_api import enqueue_batch
from telemetry.ingest.partitions import maintain_partitions
from telemetry.ingest.samples import IngestResult, drain_stream
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.models import Alert, ReadingFault, Rollup, Sample, SlowReading
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_over_time import usage_over_time
from telemetry.reads.utilisation.heatmap import utilisation_heatmap
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.telemetry.rows import at, batch, end_hold, hold, workload
from tests.world import H100, World, make_gpu, make_host, unit_rows, units_of

pytestmark = [pytest.mark.django_db, pytest.mark.long]
HOUR, DAY = 3600, 86_400
MINUTE = timedelta(minutes=1)
VOLATILE_ERRORS = "ecc_uncorrected_volatile"  # since the driver was loaded


@pytest.fixture(autouse=True)
def empty_stream() -> Iterator[None]:
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)
    yield
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)


def send(world: World, *batches: SampleBatch, now: dt.datetime, host: str = "alpha") -> IngestResult:
    for each in batches:
        enqueue_batch(world.hosts[host].pk, each, now)
    return drain_stream(redis_client.redis_client(), now)


def with_energy(sent: SampleBatch, first: int, step: int) -> SampleBatch:
    """Return the batch with an energy counter that grows by ``step`` with each sample."""
    rows = [replace(row, energy_mj=first + number * step) for number, row in enumerate(sent.rows)]
    return replace(sent, rows=rows)


def rollup(resolution: int, unit: Unit, bucket: dt.datetime) -> Rollup:
    return Rollup.objects.get(resolution=resolution, unit=unit, bucket=bucket, allocation__isnull=False)


# -- hardware ------------------------------------------------------------------------------------------------


def test_a_reloaded_driver_resets_the_counters_and_nothing_counts_from_zero(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9))
    before = with_energy(batch(1, unit, at(9), 60), 5_000_000_000, 3_000_000)  # 300 W
    # The driver is loaded again between two readings.
    after = with_energy(batch(2, unit, at(9, 10), 60), 0, 3_000_000)
    counters = [
        (before.rows[5], 40),
        (after.rows[0], 0),
        (after.rows[30], 1),
    ]
    seen = [GpuCountersSeen(unit.gpu.uuid, row.ts, {VOLATILE_ERRORS: value}) for row, value in counters]
    send(world, replace(before, gpus=seen[:1]), replace(after, gpus=seen[1:]), now=at(9, 30))
    roll_up_due_buckets(at(10, 10))
    hour = rollup(HOUR, unit, at(9))
    # Two intervals of 590 s at 300 W are known; the time of the reload is not.
    assert hour.energy_mj == 2 * 59 * 3_000_000
    assert hour.energy_faults == 1
    assert ReadingFault.objects.get(kind="counter").count == 1
    readings = SlowReading.objects.filter(gpu=unit.gpu, reading=VOLATILE_ERRORS).order_by("at")
    assert list(readings.values_list("value", flat=True)) == [40, 0, 1]
    evaluate_alerts(at(9, 31))
    assert Alert.objects.get(kind="ecc_growth").value == 1  # and neither 41 nor -40


def test_a_gpu_that_is_swapped_in_its_slot_keeps_its_own_samples_and_starts_its_own_counters(
    world: World,
) -> None:
    host = world.hosts["alpha"]
    old = units_of(host)[0]
    first = hold(workload(world, world.vision), old, at(9))
    send(world, with_energy(batch(1, old, at(9), 120), 7_000_000_000, 3_000_000), now=at(9, 21))
    late = with_energy(batch(3, old, at(9, 20), 6), 7_360_000_000, 3_000_000)
    end_hold(first, at(9, 25), "finished")
    Gpu.objects.filter(pk=old.gpu_id).update(retired_at=at(9, 30))
    Unit.objects.filter(pk=old.pk).update(retired_at=at(9, 30))
    gpu = make_gpu(host, old.gpu.index, H100, at(9, 30))
    Gpu.objects.filter(pk=gpu.pk).update(uuid="GPU-new")
    Unit.objects.filter(gpu=gpu).update(uuid="GPU-new")
    new = Unit.objects.get(gpu=gpu)
    hold(workload(world, world.language), new, at(9, 30))
    fresh = with_energy(batch(2, new, at(9, 30), 60), 0, 2_000_000)
    # The last batch of the old GPU arrives after the swap.
    send(world, fresh, late, now=at(9, 50))
    roll_up_due_buckets(at(10, 10))
    before, after = rollup(HOUR, old, at(9)), rollup(HOUR, new, at(9))
    assert (before.samples, after.samples) == (126, 60)
    assert after.energy_mj == 59 * 2_000_000 and after.energy_faults in (None, 0)
    assert before.energy_faults in (None, 0) and before.energy_mj == 125 * 3_000_000
    teams = {row.allocation.project.team.slug for row in (before, after)}  # type: ignore[union-attr]
    assert teams == {"vision", "language"}
    assert before.held_seconds == 25 * 60 and after.held_seconds == 30 * 60


def test_a_gpu_that_is_split_within_an_hour_is_never_counted_twice(world: World) -> None:
    host = world.hosts["alpha"]
    whole = units_of(host)[0]
    first = hold(workload(world, world.vision), whole, at(9))
    send(world, batch(1, whole, at(9), 180), now=at(9, 30))  # 30 minutes at 50 %
    end_hold(first, at(9, 30), "finished")
    Unit.objects.filter(pk=whole.pk).update(retired_at=at(9, 30))
    slices = Unit.objects.bulk_create(unit_rows(host, whole.gpu, 7, at(9, 30)))
    for number, unit in enumerate(slices[:2]):
        hold(workload(world, world.language), unit, at(9, 30))
        rows = batch(2 + number, unit, at(9, 30), 180, utilisation=None, sm_active=40.0)
        send(world, rows, now=at(10))
    roll_up_due_buckets(at(11))
    hour = Rollup.objects.filter(resolution=HOUR, bucket=at(9), unit__gpu=whole.gpu)
    parts = {row.unit_id: row for row in hour}
    assert set(parts) == {whole.pk, *(unit.pk for unit in slices[:2])}
    for row in parts.values():
        assert row.held_seconds == 1800 and 1700 < row.covered_seconds <= 1800
    assert [parts[unit.pk].utilisation_seconds for unit in slices[:2]] == [None, None]  # MIG measures none
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(held_seconds), sum(busy_seconds) FROM telemetry_rollupcube"
            " WHERE resolution = 3600 AND bucket = %s",
            [at(9)],
        )
        held, busy = cursor.fetchone()
    size = SLOTS_PER_GPU // 7
    assert held == SLOTS_PER_GPU * 1800 + 2 * size * 1800
    assert held < SLOTS_PER_GPU * HOUR  # five slices were held by nobody
    assert busy <= held
    filters = UsageFilters(at(9), at(10), model=H100)
    [line] = usage_over_time(filters, step=timedelta(hours=1))
    assert line.held == [pytest.approx(0.5 + 0.5 * 2 / 7, abs=1e-6)]


# -- calendar ------------------------------------------------------------------------------------------------


def test_the_29th_of_february_has_its_own_partition_rollups_and_place_in_its_month(world: World) -> None:
    leap = dt.datetime(2028, 2, 29, tzinfo=dt.UTC)
    maintain_partitions(leap + timedelta(hours=12))
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, leap)
    midnight = leap + timedelta(days=1)
    send(world, batch(1, unit, midnight - 10 * MINUTE, 120), now=midnight + 11 * MINUTE)
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text, count(*) FROM telemetry_sample GROUP BY 1")
        places = dict(cursor.fetchall())
    assert places == {"telemetry_sample_20280229": 60, "telemetry_sample_20280301": 60}
    now = midnight + timedelta(days=1, hours=1)
    roll_up_due_buckets(now)
    day = rollup(DAY, unit, leap)
    assert (day.samples, day.held_seconds) == (60, DAY)
    assert 600 <= day.covered_seconds <= 630  # a sample also covers up to 30 s before it
    assert rollup(DAY, unit, midnight).samples == 60
    march = read_period({"period": "last"}, dt.datetime(2028, 3, 5, tzinfo=dt.UTC), "UTC")
    assert march.length == timedelta(days=29)
    assert march.start <= leap < march.end
    [line] = usage_over_time(UsageFilters(march.start, march.end), step=timedelta(days=1))
    values = dict(zip(line.starts, line.held, strict=True))
    assert len(values) == 29 and values[leap] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("day", "hours"), [(dt.date(2026, 3, 29), 23), (dt.date(2026, 10, 25), 25)], ids=["23 h", "25 h"]
)
def test_a_day_on_which_clocks_change_has_all_of_its_hours_and_no_other(
    world: World, day: dt.date, hours: int
) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    start = dt.datetime.combine(day, dt.time(), berlin)
    end = dt.datetime.combine(day + timedelta(days=1), dt.time(), berlin)
    unit = units_of(world.hosts["alpha"])[0]
    first, last = start.astimezone(dt.UTC), end.astimezone(dt.UTC)
    hold(workload(world, world.vision), unit, first, last)
    sequence = 1
    moment = first
    while moment < last:
        send(world, batch(sequence, unit, moment, 12, every=5), now=moment + MINUTE)
        sequence, moment = sequence + 1, moment + timedelta(hours=1)
    roll_up_due_buckets(last + timedelta(hours=2))
    filters = UsageFilters(first, last)
    [line] = usage_over_time(filters, step=timedelta(days=1), zone=berlin)
    assert line.starts == [first] and line.held == [pytest.approx(1.0)]
    [by_hour] = usage_over_time(filters, step=timedelta(hours=1), zone=berlin)
    assert len(by_hour.starts) == hours and sum(by_hour.held) == pytest.approx(hours)
    cells = utilisation_heatmap(filters, zone=berlin)[day.weekday()]
    known = [hour for hour, value in enumerate(cells) if value is not None]
    # The hour that does not exist is unknown and not zero; the hour that exists twice is a mean of both.
    assert known == [hour for hour in range(24) if hours == 25 or hour != 2]
    assert {round(cells[hour] or 0.0, 3) for hour in known} == {0.5}


# -- a clock that is set, and two agents ---------------------------------------------------------------------


def test_a_second_host_with_the_same_gpus_stores_none_of_their_samples(world: World) -> None:
    """The samples of a copied machine belong to no unit of its own host."""
    unit = units_of(world.hosts["alpha"])[0]
    twin = make_host("twin", world.shared, [H100], at(8))
    done = send(world, batch(1, unit, at(9), 60), now=at(9, 11))
    enqueue_batch(twin.pk, batch(1, unit, at(9), 60), at(9, 11))
    refused = drain_stream(redis_client.redis_client(), at(9, 11))
    assert (done.rows, refused.rows, refused.rejected) == (60, 0, 60)
    assert Sample.objects.count() == 60
