"""Test outages between agent and database: each sample is stored once, and lost time stays a gap.

The stream is in the Valkey of the tests, the rows in their PostgreSQL, and the spool is that of the agent.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import OperationalError, connection

from agent.protocol import SampleBatch
from agent.server.sample_spool import SampleSpool
from scheduler.models import Unit
from telemetry.ingest import redis_client, samples
from telemetry.ingest.agent_api import committed_sequence, enqueue_batch
from telemetry.ingest.samples import IngestResult, drain_stream
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.ingest.watermarks import skip_missing_batches
from telemetry.models import Batch, HostHour, Rollup, RollupDue, Sample, SampleGap
from telemetry.reads.usage_by_group import usage_by
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.usage_over_time import usage_over_time
from telemetry.reads.utilisation.raw_series import raw_series
from telemetry.rollups.rebuild import rebuild_rollups
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.concurrency.conftest import world as committed_world
from tests.isolation import WORKER, own_redis_url
from tests.scheduler.conftest import test_database_url as database_url
from tests.telemetry.rows import at, batch, hold, workload
from tests.world import World, units_of

__all__ = ["committed_world"]
pytestmark = [pytest.mark.django_db, pytest.mark.long]
MINUTE = timedelta(minutes=1)
HOUR = 3600
ROWS = 6  # of a batch: one a minute, ten seconds apart


@pytest.fixture(autouse=True)
def empty_stream() -> Iterator[None]:
    """Empty this test process's own Redis database."""
    assert not WORKER or own_redis_url(settings.REDIS_URL, WORKER) == settings.REDIS_URL
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)
    yield
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)


def minute_batches(unit: Unit, start: dt.datetime, minutes: int, first: int = 1) -> list[SampleBatch]:
    """Return a batch for each minute, numbered from ``first`` on."""
    return [batch(first + number, unit, start + number * MINUTE, ROWS) for number in range(minutes)]


def send(world: World, batches: Sequence[SampleBatch], now: dt.datetime) -> IngestResult:
    for each in batches:
        enqueue_batch(world.hosts["alpha"].pk, each, now)
    return drain_stream(redis_client.redis_client(), now)


def roll_up_all(now: dt.datetime, most: int | None = None) -> int:
    """Roll up until nothing is due. Return the number of runs."""
    for number in range(1, 1000):
        roll_up_due_buckets(now, max_buckets=most)
        if not RollupDue.objects.filter(bucket__lt=now - timedelta(days=1)).exists():
            return number
    raise AssertionError("the rollups do not end")


def hours_of(unit: Unit) -> dict[dt.datetime, Rollup]:
    return {row.bucket: row for row in Rollup.objects.filter(resolution=HOUR, unit=unit)}


# -- a host that is off or cut off ---------------------------------------------------------------------------


def test_a_host_that_is_off_for_a_day_leaves_a_gap_and_no_zero(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    held = hold(workload(world, world.vision), unit, at(9))
    send(world, minute_batches(unit, at(9), 60), at(10))
    roll_up_all(at(10, 10))
    back = at(10, day=3)
    send(world, minute_batches(unit, back, 60, first=61), at(11, day=3))
    roll_up_all(at(12, day=3))
    hours = hours_of(unit)
    for hour in (at(11), at(23), at(8, day=3)):
        row = hours[hour]
        assert (row.held_seconds, row.covered_seconds) == (3600, 0), hour
        assert (row.busy_seconds, row.idle_seconds, row.utilisation_seconds) == (None, None, None)
    assert hours[back].covered_seconds > 3500 and hours[back].busy_seconds is not None
    filters = UsageFilters(at(9), at(12, day=3))
    [line] = usage_over_time(filters, step=timedelta(hours=1))
    values = dict(zip(line.starts, line.busy, strict=True))
    assert values[at(9)] == pytest.approx(0.5, abs=0.01) and values[at(11)] is None
    assert line.held[2] == pytest.approx(1.0)  # the GPU was held all the time
    [team] = [group for group in usage_by("team", filters).groups if group.held]
    assert team.coverage == pytest.approx(2 / 27, abs=0.005)  # two of 27 hours are measured
    points = raw_series([unit.pk], [held.pk], at(9), at(12, day=3))["utilisation"]
    assert [value for _, value in points].count(None) == 1  # no line is drawn across the day


def test_a_host_that_was_cut_off_for_a_day_sends_its_spool_and_nothing_is_lost(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9))
    roll_up_all(at(10, day=3))
    assert hours_of(unit)[at(12)].covered_seconds == 0
    assert HostHour.objects.get(hour=at(12)).state == "waiting"
    spooled = minute_batches(unit, at(9), 25 * 60)
    now = at(10, 1, day=3)
    for first in range(0, len(spooled), 300):
        send(world, spooled[first : first + 300], now)
    assert committed_sequence(world.hosts["alpha"].pk) == len(spooled)
    assert Sample.objects.count() == ROWS * len(spooled)
    roll_up_all(at(12, day=3))
    hours = hours_of(unit)
    assert all(hours[at(9) + timedelta(hours=number)].covered_seconds > 3500 for number in range(25))
    assert HostHour.objects.get(hour=at(12)).state == "complete"
    (done,) = [result for _, result in rebuild_rollups(at(0), at(0, day=3), at(12, day=3))]
    assert done.differences == 0


def test_a_full_spool_loses_its_oldest_batches_and_the_server_names_the_gap(
    world: World, tmp_path: Path
) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9))
    kept = 30
    spool = SampleSpool(tmp_path, largest_bytes=kept * 4096)  # a file takes at least one block
    for number in range(180):
        rows = batch(1, unit, at(9) + number * MINUTE, ROWS).rows
        spool.add(rows)
    pending = spool.pending(0)
    assert len(pending) == kept
    now = at(12, 1)
    send(world, [spool.read(number) for number in pending], now)
    assert committed_sequence(world.hosts["alpha"].pk) == 0  # the earlier batches are still awaited
    later = now + timedelta(minutes=11)
    skip_missing_batches(later)
    assert committed_sequence(world.hosts["alpha"].pk) == 180
    [gap] = SampleGap.objects.all()
    assert (gap.cause, gap.first_sequence, gap.last_sequence) == ("skipped", 1, 180 - kept)
    assert Sample.objects.count() == ROWS * kept
    roll_up_all(at(13, 10))
    hours = hours_of(unit)
    assert (hours[at(10)].covered_seconds, hours[at(10)].busy_seconds) == (0, None)
    assert 1700 < hours[at(11)].covered_seconds < 1900  # the last half hour is in the spool
    assert HostHour.objects.get(hour=at(10)).state == "lost"
    assert HostHour.objects.get(hour=at(10)).lost_seconds == pytest.approx(3600)


# -- faults of the server ------------------------------------------------------------------------------------


def test_a_flushed_redis_loses_no_batch_because_the_agent_sends_it_again(
    world: World, tmp_path: Path
) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    spool = SampleSpool(tmp_path)
    for number in range(4):
        spool.add(batch(1, unit, at(9) + number * MINUTE, ROWS).rows)
    for number in spool.pending(0)[:2]:
        enqueue_batch(host.pk, spool.read(number), at(9, 5))
    redis_client.redis_client().flushdb()
    assert drain_stream(redis_client.redis_client(), at(9, 5)).batches == 0
    spool.commit(committed_sequence(host.pk))
    assert spool.pending(0) == [1, 2, 3, 4]  # the agent deletes nothing before the database has it
    send(world, [spool.read(number) for number in spool.pending(0)], at(9, 6))
    spool.commit(committed_sequence(host.pk))
    assert spool.pending(0) == []
    assert Sample.objects.count() == 4 * ROWS


KILLED_WORKER = """
import signal, sys
import django
django.setup()
from django.db import connection
from telemetry.ingest import redis_client, samples
from telemetry.models import Sample

def stop_here(due, now):
    print(Sample.objects.count(), flush=True)
    signal.pause()

samples.mark_minutes_due = stop_here
import datetime
samples.drain_stream(redis_client.redis_client(), datetime.datetime.fromisoformat(sys.argv[1]))
"""


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_is_killed_in_the_middle_of_a_batch_stores_nothing_twice(
    committed_world: World, root: Path
) -> None:
    unit = units_of(committed_world.hosts["alpha"])[0]
    for each in minute_batches(unit, at(9), 3):
        enqueue_batch(committed_world.hosts["alpha"].pk, each, at(9, 5))
    worker = subprocess.Popen(
        [sys.executable, "-c", KILLED_WORKER, at(9, 5).isoformat()],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env=os.environ
        | {
            "DATABASE_URL": database_url(),
            "REDIS_URL": settings.REDIS_URL,
            "DJANGO_SETTINGS_MODULE": "config.settings",
        },
        start_new_session=True,
    )
    try:
        assert worker.stdout is not None
        assert int(worker.stdout.readline()) == 3 * ROWS  # written, and not committed
        assert Sample.objects.count() == 0
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait(60)
    assert redis_client.redis_client().xlen(SAMPLE_STREAM_KEY) == 3
    done = drain_stream(redis_client.redis_client(), at(9, 6))
    assert (done.batches, done.rows, done.doubled) == (3, 3 * ROWS, 0)
    assert (Sample.objects.count(), Batch.objects.count()) == (3 * ROWS, 3)
    assert RollupDue.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_database_that_restarts_in_the_middle_of_a_batch_stores_each_batch_once(
    committed_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = units_of(committed_world.hosts["alpha"])[0]
    for each in minute_batches(unit, at(9), 3):
        enqueue_batch(committed_world.hosts["alpha"].pk, each, at(9, 5))
    real = samples.mark_minutes_due

    def restart(*given: Any) -> None:
        with psycopg.connect(database_url()) as owner:
            owner.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        real(*given)

    with monkeypatch.context() as outage:
        outage.setattr(samples, "mark_minutes_due", restart)
        with pytest.raises(OperationalError):
            drain_stream(redis_client.redis_client(), at(9, 5))
    connection.close()
    assert (Sample.objects.count(), Batch.objects.count()) == (0, 0)
    assert redis_client.redis_client().xlen(SAMPLE_STREAM_KEY) == 3
    assert drain_stream(redis_client.redis_client(), at(9, 6)).batches == 3
    assert Sample.objects.count() == 3 * ROWS
    with monkeypatch.context() as outage:
        outage.setattr("telemetry.rollups.minute_rollups.write_open_rows", restart_rollups(outage))
        with pytest.raises(OperationalError):
            roll_up_due_buckets(at(9, 20))
    connection.close()
    minutes = Rollup.objects.filter(resolution=60, unit=unit, bucket__gte=at(9))
    assert not minutes.exists()
    assert RollupDue.objects.filter(resolution=60, bucket__gte=at(9)).count() == 3
    roll_up_due_buckets(at(9, 20))
    assert minutes.count() == 3


def restart_rollups(outage: pytest.MonkeyPatch) -> Any:
    """Return a function that ends all connections to the database before it writes rollups."""
    from telemetry.rollups import minute_rollups

    real = minute_rollups.write_open_rows

    def restart(*given: Any) -> None:
        with psycopg.connect(database_url()) as owner:
            owner.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        real(*given)

    return restart


def test_batches_that_arrive_twice_and_out_of_order_give_the_same_rows(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9))
    sent = minute_batches(unit, at(9), 60) * 2
    random.Random(15).shuffle(sent)
    done = [send(world, [each], at(10, 1)) for each in sent]
    assert sum(each.doubled for each in done) == 60
    assert committed_sequence(world.hosts["alpha"].pk) == 60
    assert Sample.objects.count() == 60 * ROWS
    assert not SampleGap.objects.exists()
    roll_up_all(at(11, 10))
    assert hours_of(unit)[at(9)].samples == 60 * ROWS
    (done_again,) = [result for _, result in rebuild_rollups(at(9), at(10), at(12))]
    assert done_again.differences == 0


def test_a_week_of_rollups_that_are_owed_is_made_up_in_many_short_runs(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9))
    sequence = 1
    for day in range(7):
        for hour in (9, 21):
            start = at(hour) + timedelta(days=day)
            send(world, minute_batches(unit, start, 20, first=sequence), start + timedelta(minutes=20))
            sequence += 20
    assert not Rollup.objects.exists()
    now = at(3) + timedelta(days=8)
    assert roll_up_all(now, most=50) > 3
    hours = hours_of(unit)
    assert sum(row.samples for row in hours.values()) == 7 * 2 * 20 * ROWS
    for day in range(7):
        assert 1100 < hours[at(9) + timedelta(days=day)].covered_seconds < 1300
        assert hours[at(15) + timedelta(days=day)].busy_seconds is None
    days = Rollup.objects.filter(resolution=86_400, unit=unit, allocation__isnull=False)
    assert days.count() == 8
    differences = [result.differences for _, result in rebuild_rollups(at(0), at(0) + timedelta(days=8), now)]
    assert set(differences) == {0}
