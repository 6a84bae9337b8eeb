"""Test the ingest of sample batches: each batch is stored once, completely and in the right bucket."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from django.conf import settings
from django.db import connection

from agent.protocol import Health, SampleBatch, SampleRow
from scheduler.models import Unit
from telemetry.ingest import redis_client
from telemetry.ingest.agent_api import committed_sequence, enqueue_batch, record_health_event
from telemetry.ingest.samples import IngestResult, drain_stream
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.ingest.watermarks import prune_batches
from telemetry.models import Batch, HealthEvent, ReadingFault, Rollup, RollupDue, Sample
from telemetry.rollups.due_marks import mark_minutes_due
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.isolation import WORKER, own_redis_url
from tests.seeds import first_cases
from tests.telemetry.rows import at, batch, hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
NOW = at(10, 0)


@pytest.fixture(autouse=True)
def empty_stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty the stream in this test process's own Redis database."""
    assert not WORKER or own_redis_url(settings.REDIS_URL, WORKER) == settings.REDIS_URL
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)
    yield
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)


def ingest_batches(
    world: World, *batches: SampleBatch, host: str = "alpha", now: object = NOW
) -> IngestResult:
    for each in batches:
        enqueue_batch(world.hosts[host].pk, each, NOW)
    return drain_stream(redis_client.redis_client(), now)  # type: ignore[arg-type]


def test_a_batch_is_acknowledged_only_after_it_is_stored(world: World) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    enqueue_batch(host.pk, batch(1, unit, at(9, 50), 6), NOW)
    assert committed_sequence(host.pk) == 0
    done = drain_stream(redis_client.redis_client(), NOW)
    assert (done.batches, done.rows, done.rejected) == (1, 6, 0)
    assert committed_sequence(host.pk) == 1
    assert Sample.objects.filter(unit=unit).count() == 6
    assert redis_client.redis_client().xlen(SAMPLE_STREAM_KEY) == 0


def test_a_duplicate_batch_is_stored_once(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    first = batch(1, unit, at(9, 50), 6)
    ingest_batches(world, first, first)
    assert ingest_batches(world, first).doubled == 1
    assert Sample.objects.count() == 6
    assert Batch.objects.count() == 1


def test_the_watermark_rejects_a_duplicate_batch_whose_row_was_pruned(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    ingest_batches(world, batch(1, unit, at(9, 50), 6))
    assert prune_batches(NOW + timedelta(days=3)) == 1
    assert ingest_batches(world, batch(1, unit, at(9, 50), 6)).doubled == 1
    assert Sample.objects.count() == 6


def test_the_watermark_waits_for_a_missing_batch_so_that_flushing_redis_loses_no_sample(world: World) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    enqueue_batch(host.pk, batch(1, unit, at(9, 50), 6), NOW)
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)
    ingest_batches(world, batch(2, unit, at(9, 51), 6))
    assert committed_sequence(host.pk) == 0
    ingest_batches(world, batch(1, unit, at(9, 50), 6), batch(2, unit, at(9, 51), 6))
    assert committed_sequence(host.pk) == 2
    assert Sample.objects.count() == 12


def test_the_watermark_skips_a_missing_batch_after_a_timeout(world: World) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    ingest_batches(world, batch(5, unit, at(9, 50), 6))
    assert committed_sequence(host.pk) == 0
    ingest_batches(world, batch(6, unit, at(9, 59), 1), now=NOW + timedelta(minutes=11))
    assert committed_sequence(host.pk) == 6


def test_rows_of_other_hosts_and_of_the_future_are_counted_and_rejected(world: World) -> None:
    alpha, beta = units_of(world.hosts["alpha"])[0], units_of(world.hosts["beta"])[0]
    rows = [
        *batch(1, alpha, at(9, 50), 1).rows,
        *batch(1, beta, at(9, 50), 1).rows,  # invalid: a GPU of another host
        *batch(1, alpha, at(10, 30), 1).rows,  # invalid: a time in the future
    ]
    done = ingest_batches(world, SampleBatch(sequence=1, rows=rows))
    assert (done.rows, done.rejected) == (1, 2)
    assert Batch.objects.get().rejected_rows == 2


def report_limits(world: World, **limits: float) -> Unit:
    """Let host alpha report these limits of its first GPU. Return the GPU's unit."""
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    host.hardware = {"reported": {"gpus": [{"uuid": unit.gpu.uuid, **limits}]}}
    host.save(update_fields=["hardware"])
    return unit


@pytest.mark.parametrize(
    ("reading", "value", "last_value"),
    first_cases(
        4,
        [
            ("power_w", 99_999.0, 99_999.0),
            ("power_w", 1_050.1, 1_050.1),  # 1.5 x 700 W is 1050 W
            ("power_w", math.inf, None),
            ("power_w", -1.0, -1.0),
            ("temperature_c", 4_000.0, 4_000.0),
            ("memory_temperature_c", 119.5, 119.5),  # 89 + 30 degrees is 119 degrees
            ("memory_used_mib", 2_000_000, 2_000_000.0),
            ("memory_used_mib", 2**31, 2.0**31),
            ("utilisation", 250.0, 250.0),
            ("sm_active", math.nan, -1.0),
            ("energy_mj", 2**63, 2.0**63),
            ("energy_mj", -5, -5.0),
            ("nvlink_kib", 2**63, 2.0**63),
            ("processes", -1, -1.0),
        ],
    ),
)
def test_an_impossible_reading_is_unknown_and_counted(
    world: World, reading: str, value: float, last_value: float | None
) -> None:
    unit = report_limits(world, power_limit_w=700.0, slowdown_temperature_c=89)
    done = ingest_batches(world, batch(1, unit, at(9, 50), 2, **{reading: value}))
    assert (done.rows, done.rejected, done.impossible) == (2, 0, 2)
    assert list(Sample.objects.values_list(reading, flat=True)) == [None, None]
    assert all(Sample.objects.values_list("memory_used_mib" if reading == "power_w" else "ts", flat=True))
    fault = ReadingFault.objects.get()
    assert (fault.host, fault.source, fault.reading) == (world.hosts["alpha"], "simulated", reading)
    assert (fault.kind, fault.count, fault.day) == ("out_of_bounds", 2, at(9).date())
    assert (fault.last_at, fault.last_value) == (at(9, 50, 10), last_value)


def test_readings_at_their_bounds_are_stored(world: World) -> None:
    unit = report_limits(world, power_limit_w=700.0, slowdown_temperature_c=89)
    readings = {"power_w": 1_050.0, "temperature_c": 119.0, "memory_used_mib": unit.memory_mib}
    ingest_batches(world, batch(1, unit, at(9, 50), 1, utilisation=100.0, **readings))
    assert Sample.objects.values(*readings).get() == readings
    assert not ReadingFault.objects.exists()


def test_general_limits_apply_if_the_inventory_has_none(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    readings = {"power_w": 3_000.0, "temperature_c": 140.0}
    ingest_batches(world, batch(1, unit, at(9, 50), 1, **readings))
    assert Sample.objects.values(*readings).get() == readings
    ingest_batches(world, batch(2, unit, at(9, 51), 1, power_w=3_000.1, temperature_c=140.1))
    assert set(ReadingFault.objects.values_list("reading", "count")) == {("power_w", 1), ("temperature_c", 1)}


def test_a_repeated_batch_counts_its_faults_once(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    wrong = batch(1, unit, at(9, 50), 2, power_w=-3.0)
    ingest_batches(world, wrong, wrong)
    ingest_batches(world, wrong)
    ingest_batches(world, batch(2, unit, at(9, 52), 1, power_w=-4.0))
    fault = ReadingFault.objects.get()
    assert (fault.count, fault.last_value, fault.last_at) == (3, -4.0, at(9, 52))


def energy_batch(sequence: int, unit: Unit, start: datetime, counters: list[int]) -> SampleBatch:
    """Return a batch of samples, 10 seconds apart, with these values of the energy counter in joules."""
    rows = [
        SampleRow(unit.uuid, start.timestamp() + 10 * place, energy_mj=joules * 1_000, processes=1)
        for place, joules in enumerate(counters)
    ]
    return SampleBatch(sequence, rows)


def test_energy_is_unknown_where_the_counter_fell_or_grew_too_fast(world: World) -> None:
    unit = report_limits(world, power_limit_w=700.0)
    allocation = hold(workload(world, world.vision), unit, at(9, 0))
    # 10 seconds at 300 W are 3000 J. The driver is loaded after the third reading. The sixth reading is
    # impossible: 1.2 x 700 W x 10 s is 8400 J.
    counters = [900_000, 903_000, 906_000, 1_000, 4_000, 12_401, 15_401]
    ingest_batches(world, energy_batch(1, unit, at(9, 50), counters))
    roll_up_due_buckets(NOW)
    hour = Rollup.objects.get(resolution=3600, allocation=allocation)
    assert (hour.energy_mj, hour.energy_faults) == (4 * 3_000_000, 2)
    fault = ReadingFault.objects.get()
    assert (fault.reading, fault.kind, fault.source, fault.count) == ("energy_mj", "counter", "simulated", 2)


def test_energy_faults_count_once_however_often_a_minute_is_rolled_up(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    ingest_batches(world, energy_batch(1, unit, at(9, 50), [5_000, 1_000, 2_000]))
    roll_up_due_buckets(NOW)
    mark_minutes_due([(world.hosts["alpha"].pk, int(at(9, 50).timestamp()))], NOW)
    roll_up_due_buckets(NOW)
    assert ReadingFault.objects.get().count == 1
    # A late sample shows that the counter did not fall between two readings of the same driver.
    late = SampleRow(unit.uuid, at(9, 50, 5).timestamp(), energy_mj=500_000)
    ingest_batches(world, SampleBatch(2, [late]))
    roll_up_due_buckets(NOW)
    assert ReadingFault.objects.get().count == 1
    assert Rollup.objects.get(resolution=60, bucket=at(9, 50)).energy_mj == 1_500_000


def test_an_invalid_stream_entry_is_dropped_and_the_other_batches_are_stored(world: World) -> None:
    redis_client.redis_client().xadd(SAMPLE_STREAM_KEY, {"host": "what"})
    assert ingest_batches(world, batch(1, units_of(world.hosts["alpha"])[0], at(9, 50), 2)).rows == 2


def test_missing_readings_are_stored_as_null(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    ingest_batches(world, batch(1, unit, at(9, 50), 1, utilisation=None, processes=None))
    sample = Sample.objects.get()
    assert (sample.utilisation, sample.processes, sample.power_w) == (None, None, None)


def test_a_sample_is_attributed_to_the_allocation_that_held_the_unit_at_its_time(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    first = hold(workload(world, world.vision), unit, at(9, 40), at(9, 50, 30), end_code="finished")
    second = hold(workload(world, world.language), unit, at(9, 51))
    ingest_batches(world, batch(1, unit, at(9, 50), 10))
    owners = list(Sample.objects.order_by("ts").values_list("allocation_id", flat=True))
    assert owners == [first.pk] * 3 + [None] * 3 + [second.pk] * 4


def test_samples_are_rolled_up_with_coverage_and_a_late_sample_updates_its_bucket(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    allocation = hold(workload(world, world.vision), unit, at(9, 0))
    ingest_batches(world, batch(1, unit, at(9, 30, 10), 3))
    roll_up_due_buckets(NOW)
    minute = Rollup.objects.get(resolution=60, bucket=at(9, 30), allocation=allocation)
    assert (minute.held_seconds, minute.covered_seconds, minute.utilisation_seconds) == (60, 30, 15)
    assert not RollupDue.objects.exists()
    ingest_batches(world, batch(2, unit, at(9, 30, 40), 3, utilisation=100.0))
    roll_up_due_buckets(NOW)
    minute = Rollup.objects.get(resolution=60, bucket=at(9, 30), allocation=allocation)
    assert (minute.covered_seconds, minute.utilisation_seconds, minute.samples) == (60, 45, 5)
    hour = Rollup.objects.get(resolution=3600, bucket=at(9), allocation=allocation)
    roll_up_due_buckets(at(0, 6, day=3))
    day = Rollup.objects.get(resolution=86_400, allocation=allocation, bucket=at(0))
    # The first reading covers the 30 s before it, of which 20 s are in the previous minute.
    assert hour.covered_seconds == day.covered_seconds == 80
    assert hour.samples == 6


def test_rolling_up_again_changes_nothing(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    ingest_batches(world, batch(1, unit, at(9, 30, 10), 30))
    roll_up_due_buckets(NOW)
    fields = ("resolution", "bucket", "unit", "covered_seconds", "utilisation_seconds", "samples")
    before = list(Rollup.objects.order_by("resolution", "bucket").values_list(*fields))
    ingest_batches(world, batch(2, unit, at(9, 30, 10), 0))
    RollupDue.objects.create(resolution=60, bucket=at(9, 30), host=world.hosts["alpha"], marked_at=NOW)
    roll_up_due_buckets(NOW)
    assert list(Rollup.objects.order_by("resolution", "bucket").values_list(*fields)) == before


def test_a_stray_process_is_reported_once_an_hour(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    ingest_batches(
        world,
        batch(1, unit, at(9, 50), 3, stray_processes=2),
        batch(2, unit, at(9, 55), 3, stray_processes=2),
    )
    event = HealthEvent.objects.get()
    assert (event.code, event.gpu_id) == ("stray:process", unit.gpu_id)


def test_a_duplicate_hardware_event_is_stored_once(world: World) -> None:
    gpu = units_of(world.hosts["alpha"])[0].gpu
    event = Health(event_id="e1", gpu=gpu.uuid, source="xid", code="xid:79", ts=at(9, 59).timestamp())
    assert record_health_event(world.hosts["alpha"].pk, event, NOW) is True
    assert record_health_event(world.hosts["alpha"].pk, event, NOW) is False
    assert HealthEvent.objects.get().gpu == gpu


def test_new_partitions_take_over_earlier_rows_and_old_partitions_are_dropped(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    ingest_batches(world, batch(1, unit, at(9, 50), 6))
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM telemetry_sample_default")
        assert cursor.fetchone() == (6,)
        cursor.execute("SELECT telemetry_make_partitions('2026-03-01', 4)")
        assert cursor.fetchone() == (4,)
        cursor.execute("SELECT count(*) FROM telemetry_sample_20260302")
        assert cursor.fetchone() == (6,)
        cursor.execute(
            "SELECT telemetry_make_partitions('2026-03-01', 4), telemetry_drop_samples_before('2026-03-03')"
        )
        assert cursor.fetchone() == (0, 2)
    assert Sample.objects.count() == 0
