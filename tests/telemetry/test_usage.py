"""Test the ingest of the entries that agents send once a minute beside their samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.protocol import (
    DeviceTrafficSeen,
    GpuCountersSeen,
    HostUseSeen,
    ProcessUseSeen,
    ProtocolError,
    RunUseSeen,
    SampleBatch,
    UnitMinuteSeen,
    decode,
    encode,
)
from scheduler.models import Run
from telemetry.ingest import redis_client
from telemetry.ingest.agent_api import enqueue_batch
from telemetry.ingest.partitions import maintain_partitions
from telemetry.ingest.samples import IngestResult, drain_stream
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.models import HostUse, ProcessUse, ReadingFault, RunUse, Sample, SlowReading
from tests.telemetry.rows import at, batch, hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
NOW = at(10, 0)
TS = at(9, 50).timestamp()


@pytest.fixture(autouse=True)
def empty_stream() -> Iterator[None]:
    """Empty the stream in this test process's own Redis database."""
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)
    yield
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)


def ingest(world: World, *batches: SampleBatch, host: str = "alpha") -> IngestResult:
    for each in batches:
        enqueue_batch(world.hosts[host].pk, each, NOW)
    return drain_stream(redis_client.redis_client(), NOW)


def run_on(world: World) -> Run:
    held = hold(workload(world, world.vision), units_of(world.hosts["alpha"])[0], at(9, 40))
    return Run.objects.get(pk=held.run_id)


def test_the_readings_of_a_minute_are_stored_in_the_row_of_their_time_only(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    sent = batch(1, unit, at(9, 50), 3)
    minute = UnitMinuteSeen(unit.uuid, sent.rows[1].ts, dram_active=12.5, pcie_rx_bytes=2**50 + 1)
    stray = UnitMinuteSeen(unit.uuid, sent.rows[1].ts + 1, dram_active=99.0)
    ingest(world, dataclasses.replace(sent, units=[minute, stray]))
    rows = (
        Sample.objects.filter(unit=unit)
        .order_by("ts")
        .values_list("dram_active", "pcie_rx_bytes", "fan_percent")
    )
    assert list(rows) == [(None, None, None), (12.5, 2**50 + 1, None), (None, None, None)]


@pytest.mark.parametrize("value", [-1, 101.0, 1e18])
def test_an_impossible_reading_of_a_minute_is_unknown_and_counted(world: World, value: float) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    sent = batch(1, unit, at(9, 50), 1)
    minute = UnitMinuteSeen(unit.uuid, sent.rows[0].ts, dram_active=value, sm_occupancy=5.0)
    assert ingest(world, dataclasses.replace(sent, units=[minute])).impossible == 1
    assert Sample.objects.values_list("dram_active", "sm_occupancy").get() == (None, 5.0)
    assert ReadingFault.objects.values_list("reading", "count").get() == ("dram_active", 1)


def test_a_repeated_batch_stores_the_use_of_runs_hosts_and_processes_once(world: World) -> None:
    run, unit = run_on(world), units_of(world.hosts["alpha"])[0]
    sent = SampleBatch(
        1,
        [],
        runs=[RunUseSeen(str(run.public_id), TS, cpu_seconds=7.5, io_read_bytes=2**40)],
        host=[HostUseSeen(TS, cpu_seconds=1e6, disks=[DeviceTrafficSeen("nvme0n1", 1, 2)])],
        processes=[ProcessUseSeen(unit.uuid, TS, str(run.public_id), 77, name="python", sm_percent=40.0)],
    )
    ingest(world, sent, sent)
    ingest(world, sent)
    stored = RunUse.objects.get()
    assert (stored.run_id, stored.cpu_seconds, stored.io_read_bytes) == (run.pk, 7.5, 2**40)
    assert (stored.memory_mib, stored.network_rx_bytes) == (None, None), "unknown stays NULL"
    host = HostUse.objects.get()
    assert (host.host_id, host.cpu_seconds, host.disks, host.networks) == (
        world.hosts["alpha"].pk,
        1e6,
        {"nvme0n1": [1, 2]},
        {},
    )
    process = ProcessUse.objects.get()
    assert (process.unit_id, process.run_id, process.pid, process.name) == (unit.pk, run.pk, 77, "python")
    assert (process.sm_percent, process.memory_mib) == (40.0, None)


def test_entries_of_another_host_and_of_another_time_are_dropped(world: World) -> None:
    run, unit = run_on(world), units_of(world.hosts["alpha"])[0]
    name = str(run.public_id)
    sent = SampleBatch(
        1,
        [],
        gpus=[GpuCountersSeen(unit.uuid, TS, {"pcie_replays": 1})],
        runs=[RunUseSeen(name, TS), RunUseSeen("no run", TS)],
        processes=[ProcessUseSeen(unit.uuid, TS, name, 77)],
    )
    ingest(world, sent, host="beta")
    future = (NOW + timedelta(hours=1)).timestamp()
    ingest(world, dataclasses.replace(sent, runs=[RunUseSeen(name, future)], gpus=[], processes=[]))
    assert (
        not RunUse.objects.exists() and not ProcessUse.objects.exists() and not SlowReading.objects.exists()
    )


def test_a_batch_with_many_times_of_counters_takes_few_queries(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0].uuid
    counters = [GpuCountersSeen(unit, TS - second, {"pcie_replays": 900 - second}) for second in range(500)]
    with CaptureQueriesContext(connection) as queries:
        ingest(world, SampleBatch(1, [], gpus=counters))
    assert len(queries) < 120
    assert SlowReading.objects.count() == 60 and SlowReading.objects.latest("at").value == 900


def test_an_impossible_use_is_unknown_and_counted(world: World) -> None:
    run = run_on(world)
    ingest(
        world, SampleBatch(1, [], runs=[RunUseSeen(str(run.public_id), TS, cpu_seconds=-1, memory_mib=2**62)])
    )
    assert RunUse.objects.values_list("cpu_seconds", "memory_mib").get() == (None, None)
    assert set(ReadingFault.objects.values_list("reading", flat=True)) == {
        "run_cpu_seconds",
        "run_memory_mib",
    }


def test_counters_of_gpus_are_stored_when_they_change_with_their_source(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]

    def send(sequence: int, minute: int, **values: int) -> None:
        entry = GpuCountersSeen(unit.uuid, at(9, minute).timestamp(), values)
        ingest(world, SampleBatch(sequence, [], gpus=[entry]))

    send(1, 10, pcie_replays=5, ecc_corrected=0, no_such_counter=1)
    send(2, 11, pcie_replays=5, ecc_corrected=1)
    send(3, 12, pcie_replays=0)  # the driver was loaded again
    send(4, 13, pcie_replays=-1)  # the agent replaces 2**63 by -1
    rows = SlowReading.objects.order_by("at", "reading").values_list("reading", "value", "source")
    source = "simulated" if world.hosts["alpha"].simulated else "nvml"
    assert list(rows) == [
        ("ecc_corrected", 0, source),
        ("pcie_replays", 5, source),
        ("ecc_corrected", 1, source),
        ("pcie_replays", 0, source),
    ]
    assert ReadingFault.objects.values_list("reading", "count").get() == ("pcie_replays", 1)


def test_a_counter_that_arrives_late_is_compared_with_the_one_before_it(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]

    def send(sequence: int, minute: int, value: int) -> None:
        entry = GpuCountersSeen(unit.uuid, at(9, minute).timestamp(), {"pcie_replays": value})
        ingest(world, SampleBatch(sequence, [], gpus=[entry]))

    send(1, 10, 5)
    send(3, 30, 9)
    send(2, 20, 5)
    assert list(SlowReading.objects.order_by("at").values_list("value", flat=True)) == [5, 9]


def test_the_time_of_an_entry_is_corrected_like_that_of_a_sample(world: World) -> None:
    sent = SampleBatch(
        1, [], host=[HostUseSeen(TS + 300, uptime=100.0), HostUseSeen(TS + 3600, uptime=100.0)]
    )
    ingest(world, dataclasses.replace(sent, server_offset=TS - 100, server_offset_error=0.01))
    assert [row.ts for row in HostUse.objects.all()] == [at(9, 50)]


def test_partitions_of_uses_are_made_and_dropped_with_those_of_samples(world: World) -> None:
    maintain_partitions(NOW)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT to_regclass('telemetry_runuse_20260302'), to_regclass('telemetry_sample_20260302')"
        )
        assert None not in cursor.fetchone()
        cursor.execute("SELECT count(*) FROM pg_indexes WHERE tablename = 'telemetry_sample_20260302'")
        assert cursor.fetchone() == (2,), "a new partition has the index of the readings of the minute"
    maintain_partitions(NOW + timedelta(days=20))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT to_regclass('telemetry_runuse_20260302'), to_regclass('telemetry_sample_20260302')"
        )
        assert cursor.fetchone() == (None, None)


@pytest.mark.parametrize(
    "entries",
    [
        {"gpus": [GpuCountersSeen("\ud800", TS, {"pcie_replays": 1})]},
        {"host": [HostUseSeen(TS, disks=[DeviceTrafficSeen("sd\ud800", 1, 2)])]},
        {"processes": [ProcessUseSeen("unit", TS, "run", 77, name="a\udcff")]},
    ],
    ids=lambda entries: next(iter(entries)),
)
def test_names_that_no_database_can_store_are_refused_before_they_stop_the_ingest_of_all_hosts(
    entries: dict[str, Any],
) -> None:
    with pytest.raises(ProtocolError, match="name|gpu: holds a surrogate character"):
        decode(encode(SampleBatch(1, [], **entries)), {"samples": SampleBatch})
