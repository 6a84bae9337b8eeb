"""Test telemetry's periodic tasks: each is scheduled under its own name and may run again at any time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from config.celery import app
from telemetry import tasks
from telemetry.ingest import agent_api, redis_client
from telemetry.ingest.partitions import maintain_partitions
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.models import Charge, HealthEvent, Retention, Rollup, Sample
from tests.telemetry.rows import at, batch, hold, pack_all, store_rollup, workload
from tests.world import World, build_world, units_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def recent_world(db: None) -> Iterator[World]:
    """Return the world as of two hours ago, for ticks that read the clock."""
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)
    yield build_world(timezone.now() - timedelta(hours=2))
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)


def partitions() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'telemetry_sample'::regclass"
        )
        return {name for (name,) in cursor.fetchall()} - {"telemetry_sample_default"}


def test_the_schedule_and_the_tasks_of_telemetry_match() -> None:
    scheduled = {
        entry["task"] for entry in app.conf.beat_schedule.values() if entry["task"].startswith("telemetry.")
    }
    assert scheduled == {
        "telemetry.tasks.ingest_stream",
        "telemetry.tasks.roll_up",
        "telemetry.tasks.charge",
        "telemetry.tasks.partitions",
        "telemetry.tasks.health",
        "telemetry.tasks.budgets",
        "telemetry.tasks.alerts",
        "telemetry.tasks.rehearse_close",
        "telemetry.tasks.report_runs",
        "telemetry.tasks.scrape_dcgm",
        "telemetry.tasks.pack_samples",
        "telemetry.tasks.study_capacity",
    }
    assert scheduled <= set(app.tasks)


def test_ticks_turn_a_sample_into_a_charge_and_running_them_again_has_no_effect(recent_world: World) -> None:
    unit = units_of(recent_world.hosts["alpha"])[0]
    start = recent_world.now + timedelta(minutes=10)
    hold(
        workload(recent_world, recent_world.vision),
        unit,
        start,
        start + timedelta(minutes=30),
        end_code="finished",
    )
    agent_api.enqueue_batch(recent_world.hosts["alpha"].pk, batch(1, unit, start, 30), timezone.now())
    for _ in range(2):
        tasks.maintain_partitions()
        tasks.ingest_stream()
        tasks.roll_up()
        tasks.charge()
        tasks.act_on_health()
        tasks.check_budgets()
    assert Sample.objects.count() == 30
    assert Rollup.objects.filter(resolution=60, allocation__isnull=False).exists()
    lines = list(
        Charge.objects.filter(bucket="used", reversal=False)
    )  # two lines if the half hour contains midnight
    assert sum(line.slot_seconds for line in lines) == 840 * 1800
    assert sum(line.evidence.used_slot_seconds for line in lines) > 0  # the samples end before the half hour
    assert not HealthEvent.objects.exists()


def test_partitions_are_created_ahead_and_dropped_after_the_retention_period(world: World) -> None:
    assert maintain_partitions(at(9))[0] == 5
    assert partitions() == {f"telemetry_sample_2026030{day}" for day in (1, 2, 3, 4, 5)}
    assert maintain_partitions(at(10)) == (0, 0)
    Retention.objects.filter(pk=1).update(sample_days=2)
    created, dropped = maintain_partitions(at(9, day=5))
    assert (created, dropped) == (3, 2)
    assert min(partitions()) == "telemetry_sample_20260303"


def test_old_minute_rollups_are_deleted_and_hourly_ones_kept(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    for resolution in (60, 3600):
        store_rollup(resolution, at(9), unit, held_seconds=60, covered_seconds=60, samples=6)
    pack_all(at(1, day=3))
    maintain_partitions(at(9) + timedelta(days=40))
    assert list(Rollup.objects.values_list("resolution", flat=True)) == [3600]
