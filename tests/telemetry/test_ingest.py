"""Test the ingest of sample batches: each batch is stored once, completely and in the right bucket."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection

from agent.protocol import Health, SampleBatch
from telemetry.ingest import redis_client
from telemetry.ingest.agent_api import committed_sequence, enqueue_batch, record_health_event
from telemetry.ingest.samples import IngestResult, drain_stream
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.ingest.watermarks import prune_batches
from telemetry.models import Batch, HealthEvent, Rollup, RollupDue, Sample
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.isolation import WORKER, own_redis_url
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


def test_invalid_rows_are_counted_and_rejected(world: World) -> None:
    alpha, beta = units_of(world.hosts["alpha"])[0], units_of(world.hosts["beta"])[0]
    rows = [
        *batch(1, alpha, at(9, 50), 1).rows,
        *batch(1, beta, at(9, 50), 1).rows,  # invalid: a GPU of another host
        *batch(1, alpha, at(10, 30), 1).rows,  # invalid: a time in the future
        *batch(1, alpha, at(9, 51), 1, utilisation=math.nan).rows,
        *batch(1, alpha, at(9, 51), 1, utilisation=250.0).rows,
        *batch(1, alpha, at(9, 51), 1, memory_used_mib=2**31).rows,
        *batch(1, alpha, at(9, 51), 1, power_w=math.inf).rows,
        *batch(1, alpha, at(9, 50), 1, processes=-1).rows,
    ]
    done = ingest_batches(world, SampleBatch(sequence=1, rows=rows))
    assert (done.rows, done.rejected) == (1, 7)
    assert Batch.objects.get().rejected_rows == 7


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
    day = Rollup.objects.get(resolution=86_400, allocation=allocation)
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
