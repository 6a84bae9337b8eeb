"""Test how dcgm-exporters are scraped, and how their values fill the samples of agents."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.db import connection

from agent.protocol import Health, SampleBatch
from config.celery import TASK_TIME_LIMIT_SECONDS
from scheduler.models import Host, Unit
from telemetry.dcgm import scrapes
from telemetry.dcgm.fields import READ_FIELDS, SAMPLE_FIELDS, SLOW_FIELDS
from telemetry.dcgm.http_fetch import MAX_ANSWER_BYTES, MAX_CONNECTIONS, TIMEOUT_SECONDS
from telemetry.dcgm.scrapes import SCRAPE_INTERVAL, scrape_due_targets
from telemetry.dcgm.targets import normalised_url, remove_target, set_target
from telemetry.ingest import redis_client
from telemetry.ingest.agent_api import enqueue_batch, record_health_event
from telemetry.ingest.partitions import maintain_partitions
from telemetry.ingest.samples import drain_stream
from telemetry.ingest.stream_format import DCGM_BITS, DCGM_READING_KINDS, READING_KINDS, SAMPLE_STREAM_KEY
from telemetry.models import (
    DcgmScrape,
    DcgmTarget,
    HealthEvent,
    ReadingFault,
    Rollup,
    Sample,
    SlowReading,
)
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.seeds import first_cases
from tests.telemetry.dcgm_server import (
    DcgmServer,
    every_field,
    exposition,
    first_gpu,
    gpu_labels,
    instance_labels,
    old_gpu_labels,
    running_server,
)
from tests.telemetry.rows import at, batch, hold, workload
from tests.world import MIG, World, units_of

pytestmark = pytest.mark.django_db
NOW = at(10, 0)
PROBLEM = DcgmTarget.Problem


@pytest.fixture(scope="module")
def shared_server() -> Iterator[DcgmServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def server(shared_server: DcgmServer) -> DcgmServer:
    shared_server.answers.clear()
    shared_server.paths.clear()
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)
    return shared_server


def scrape(
    host: Host, server: DcgmServer, text: str | bytes, moment: datetime = NOW, **options: Any
) -> DcgmTarget:
    """Let the server answer with ``text``, scrape it for the host, and return the target."""
    url = server.serve(text, **options)
    target = DcgmTarget.objects.filter(host=host).first() or set_target(host, url, moment)
    DcgmTarget.objects.filter(pk=target.pk).update(url=url, due_at=moment)
    scrape_due_targets(moment)
    target.refresh_from_db()
    return target


def ingest(world: World, *batches: SampleBatch, host: str = "alpha", now: datetime = NOW) -> None:
    for each in batches:
        enqueue_batch(world.hosts[host].pk, each, now)
    drain_stream(redis_client.redis_client(), now)


def filled(sample: Sample) -> set[str]:
    """Return the readings of a sample that are from dcgm-exporter."""
    return {name for name, bit in DCGM_BITS.items() if (sample.dcgm_readings or 0) & bit}


def stored_values(host: Host) -> dict[int, dict[str, float]]:
    """Return the known values of the last scrape of a host, by unit id and reading."""
    row = DcgmScrape.objects.filter(host=host).latest("at")
    matrix = np.frombuffer(row.values, "<f8").reshape(len(row.units), len(SAMPLE_FIELDS))
    return {
        unit: {
            name: float(value)
            for name, value in zip(SAMPLE_FIELDS, line, strict=True)
            if not math.isnan(value)
        }
        for unit, line in zip(row.units, matrix, strict=True)
    }


def test_more_than_forty_fields_are_read(world: World, server: DcgmServer) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    target = scrape(host, server, every_field(unit.gpu.uuid))
    assert (target.problem, target.fields_read, target.units_read) == ("", len(READ_FIELDS), 1)
    assert target.fields_read is not None and target.fields_read >= 40
    assert (target.unreadable_lines, target.refused_gpus) == (0, 0)
    assert set(stored_values(host)[unit.pk]) == set(SAMPLE_FIELDS)
    assert set(SlowReading.objects.values_list("reading", flat=True)) == set(SLOW_FIELDS)
    ingest(world, batch(1, unit, NOW, 1))
    sample = Sample.objects.get()
    sent = {"utilisation", "memory_used_mib"}
    assert filled(sample) == set(SAMPLE_FIELDS) - sent
    assert all(getattr(sample, name) is not None for name in SAMPLE_FIELDS)


def test_dcgm_gives_the_activity_of_an_a100_whose_nvml_has_none(world: World, server: DcgmServer) -> None:
    host = world.hosts["delta"]
    unit = units_of(host)[0]
    values = {
        "DCGM_FI_PROF_SM_ACTIVE": 0.5,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "0.250000",
        "DCGM_FI_PROF_DRAM_ACTIVE": 1.0001,  # measured over a period, so it may be a little above 1
        "DCGM_FI_DEV_GPU_UTIL": 12,
        "DCGM_FI_DEV_POWER_USAGE": 399.5,
        "DCGM_FI_PROF_PCIE_RX_BYTES": 2048,
        "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": 77,
    }
    scrape(host, server, exposition(gpu_labels(unit.gpu.uuid), values))
    ingest(world, batch(1, unit, NOW, 1, power_w=200.0), host="delta")
    sample = Sample.objects.get()
    assert (sample.sm_active, sample.tensor_active, sample.dram_active) == (50.0, 25.0, 100.0)
    assert (sample.utilisation, sample.power_w, sample.pcie_rx_kib) == (50.0, 200.0, 2)  # not replaced
    assert filled(sample) == {"sm_active", "tensor_active", "dram_active", "pcie_rx_kib"}
    assert sample.fp64_active is None


def test_two_sources_of_one_gpu_count_once(world: World, server: DcgmServer) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    allocation = hold(workload(world, world.vision), unit, at(9), at(11), end_code="finished")
    values = {"DCGM_FI_DEV_GPU_UTIL": 90, "DCGM_FI_PROF_SM_ACTIVE": 0.8}
    for second in (0, 30):
        scrape(host, server, exposition(gpu_labels(unit.gpu.uuid), values), at(10, 0, second))
    ingest(world, batch(1, unit, at(10, 0, 10), 6), now=at(10, 1))
    assert Sample.objects.count() == 6
    assert set(Sample.objects.values_list("utilisation", "sm_active")) == {(50.0, 80.0)}
    roll_up_due_buckets(at(10, 30))
    rollup = Rollup.objects.get(resolution=60, bucket=at(10), allocation=allocation)
    assert (rollup.samples, rollup.busy_seconds) == (5, 60.0)
    assert rollup.sm_active_seconds == pytest.approx(0.8 * 60)


def test_a_scrape_alone_makes_no_sample(world: World, server: DcgmServer) -> None:
    host = world.hosts["alpha"]
    scrape(host, server, every_field(first_gpu(host)))
    assert DcgmScrape.objects.count() == 1
    assert not Sample.objects.exists()


@pytest.mark.parametrize(
    ("seconds", "expected"), first_cases(3, [(-46, None), (-45, 50.0), (0, 50.0), (45, 50.0), (46, None)])
)
def test_a_value_is_used_up_to_45_seconds_from_its_scrape(
    world: World, server: DcgmServer, seconds: int, expected: float | None
) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    scrape(host, server, exposition(gpu_labels(unit.gpu.uuid), {"DCGM_FI_PROF_SM_ACTIVE": 0.5}))
    DcgmScrape.objects.update(at=NOW)
    ingest(world, batch(1, unit, NOW + timedelta(seconds=seconds), 1), now=at(10, 1))
    sample = Sample.objects.get()
    assert sample.sm_active == expected
    assert (sample.dcgm_readings is None) == (expected is None)


def test_the_nearest_scrape_is_used(world: World, server: DcgmServer) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    for second, ratio in ((0, 0.1), (30, 0.2)):
        text = exposition(gpu_labels(unit.gpu.uuid), {"DCGM_FI_PROF_SM_ACTIVE": ratio})
        scrape(host, server, text, at(10, 0, second))
    ingest(world, batch(1, unit, at(10, 0, 5), 3), now=at(10, 1))
    assert list(Sample.objects.order_by("ts").values_list("sm_active", flat=True)) == [10.0, 10.0, 20.0]


def test_a_value_of_the_previous_holder_is_not_used_for_the_next_holder(
    world: World, server: DcgmServer
) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.language), unit, at(9), at(10, 0, 10), end_code="finished")
    hold(workload(world, world.vision), unit, at(10, 0, 15))
    scrape(host, server, exposition(gpu_labels(unit.gpu.uuid), {"DCGM_FI_PROF_SM_ACTIVE": 0.5}))
    ingest(world, batch(1, unit, at(10, 0, 5), 2, every=15), now=at(10, 1))
    assert list(Sample.objects.order_by("ts").values_list("sm_active", flat=True)) == [50.0, None]


def test_old_labels_are_read_too(world: World, server: DcgmServer) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    scrape(host, server, exposition(old_gpu_labels(unit.gpu.uuid), {"DCGM_FI_DEV_GPU_TEMP": 41}))
    assert stored_values(host) == {unit.pk: {"temperature_c": 41.0}}


def test_lines_of_nvlinks_and_cpus_are_no_values_of_a_gpu(world: World, server: DcgmServer) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    uuid = unit.gpu.uuid
    text = exposition(gpu_labels(uuid), {"DCGM_FI_DEV_SM_CLOCK": 1410})
    text += f'DCGM_FI_DEV_SM_CLOCK{{nvlink="1",gpu_uuid="{uuid}",hostname="alpha"}} 5\n'
    text += 'DCGM_FI_DEV_SM_CLOCK{cpu="0",Hostname="alpha"} 6\n'
    target = scrape(host, server, text)
    assert stored_values(host) == {unit.pk: {"sm_clock_mhz": 1410.0}}
    assert (target.unreadable_lines, target.refused_gpus) == (0, 0)


def slices_of_a_gpu(host: Host) -> list[Unit]:
    """Return the MIG instances of the first GPU of the host that is split, in the order of their slots."""
    slices = Unit.objects.filter(gpu__host=host, profile=MIG).select_related("gpu").order_by("gpu", "slots")
    return [unit for unit in slices if unit.gpu_id == slices[0].gpu_id]


def report_instances(host: Host, units: list[Unit], instances: list[int]) -> None:
    """Let the agent of the host report the numbers of the MIG instances."""
    seen = [{"uuid": unit.uuid, "instance": each} for unit, each in zip(units, instances, strict=True)]
    host.hardware = {"reported": {"gpus": [{"uuid": units[0].gpu.uuid, "units": seen}]}}
    host.save(update_fields=["hardware"])


def test_each_mig_instance_gets_its_own_values_and_none_of_the_whole_gpu(
    world: World, server: DcgmServer
) -> None:
    host = world.hosts["gamma"]
    split = slices_of_a_gpu(host)
    report_instances(
        host, split, list(range(13, 13 - len(split), -1))
    )  # NVML's order is not that of the slots
    uuid = split[0].gpu.uuid
    text = "".join(
        exposition(
            instance_labels(uuid, instance, MIG),
            {"DCGM_FI_PROF_SM_ACTIVE": instance / 100, "DCGM_FI_DEV_POWER_USAGE": 300},
        )
        for instance in (12, 13)
    )
    text += exposition(gpu_labels(uuid), {"DCGM_FI_PROF_SM_ACTIVE": 0.9, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 3})
    target = scrape(host, server, text)
    assert stored_values(host) == {split[0].pk: {"sm_active": 13.0}, split[1].pk: {"sm_active": 12.0}}
    assert (target.units_read, target.refused_gpus) == (2, 0)
    slow = SlowReading.objects.get()
    assert (slow.gpu, slow.reading, slow.value) == (split[0].gpu, "ecc_uncorrected", 3)


def test_an_instance_that_cannot_be_told_from_others_is_refused(world: World, server: DcgmServer) -> None:
    host = world.hosts["gamma"]
    unit = slices_of_a_gpu(host)[0]
    text = exposition(instance_labels(unit.gpu.uuid, 7, MIG), {"DCGM_FI_PROF_SM_ACTIVE": 0.5})
    target = scrape(host, server, text)  # the agent reports no numbers, and seven instances have the profile
    assert (target.problem, target.refused_gpus) == (PROBLEM.NO_GPU, 1)
    Unit.objects.filter(gpu=unit.gpu).exclude(pk=unit.pk).update(profile="2g.10gb")
    scrape(host, server, text)
    assert stored_values(host) == {unit.pk: {"sm_active": 50.0}}


def test_blank_values_are_unknown(world: World, server: DcgmServer) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    values = {
        "DCGM_FI_DEV_GPU_TEMP": 41,
        "DCGM_FI_DEV_FAN_SPEED": 9223372036854775794,
        "DCGM_FI_DEV_MEMORY_TEMP": 2147483634,
        "DCGM_FI_PROF_SM_ACTIVE": "140737488355328.000000",
        "DCGM_FI_DEV_SM_CLOCK": "NaN",
        "DCGM_FI_DEV_XID_ERRORS": 9223372036854775792,
    }
    target = scrape(host, server, exposition(gpu_labels(unit.gpu.uuid), values))
    assert stored_values(host) == {unit.pk: {"temperature_c": 41.0}}
    assert target.fields_read == 1
    assert not SlowReading.objects.exists()
    assert not ReadingFault.objects.exists()


def test_a_broken_line_is_counted_and_the_others_are_read(world: World, server: DcgmServer) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    text = exposition(gpu_labels(unit.gpu.uuid), {"DCGM_FI_DEV_GPU_TEMP": 41})
    text = "DCGM_FI_DEV_SM_CLOCK{gpu=\n" + text + 'DCGM_FI_DEV_SM_CLOCK{gpu="0"} 5\n'  # no uuid
    target = scrape(host, server, text)
    assert (target.problem, target.unreadable_lines) == ("", 2)
    assert stored_values(host) == {unit.pk: {"temperature_c": 41.0}}
    fault = ReadingFault.objects.get()
    assert (fault.host, fault.source, fault.reading) == (host, "dcgm", "line")
    assert (fault.kind, fault.count) == ("unreadable_line", 2)


def test_a_gpu_of_another_host_is_refused_and_counted(world: World, server: DcgmServer) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    foreign = units_of(world.hosts["beta"])[0]
    values = {"DCGM_FI_DEV_GPU_TEMP": 41, "DCGM_FI_DEV_XID_ERRORS": 79}
    text = exposition(gpu_labels(foreign.gpu.uuid), values)
    target = scrape(host, server, text)
    assert (target.problem, target.refused_gpus, target.succeeded_at) == (PROBLEM.NO_GPU, 1, None)
    assert not DcgmScrape.objects.exists() and not SlowReading.objects.exists()
    target = scrape(host, server, text + exposition(gpu_labels(unit.gpu.uuid), {"DCGM_FI_DEV_GPU_TEMP": 42}))
    assert (target.problem, target.refused_gpus) == ("", 1)
    assert stored_values(host) == {unit.pk: {"temperature_c": 42.0}}
    fault = ReadingFault.objects.get()
    assert (fault.source, fault.reading, fault.kind, fault.count) == ("dcgm", "gpu", "foreign_gpu", 2)


def test_a_value_out_of_bounds_is_unknown_and_counted_by_its_source(world: World, server: DcgmServer) -> None:
    host, unit = world.hosts["alpha"], units_of(world.hosts["alpha"])[0]
    values = {"DCGM_FI_DEV_POWER_USAGE": 99_999, "DCGM_FI_PROF_SM_ACTIVE": 1.5, "DCGM_FI_DEV_GPU_TEMP": 41}
    scrape(host, server, exposition(gpu_labels(unit.gpu.uuid), values))
    assert stored_values(host) == {unit.pk: {"temperature_c": 41.0}}
    faults = ReadingFault.objects.order_by("reading").values_list("source", "reading", "kind", "last_value")
    assert list(faults) == [
        ("dcgm", "power_w", "out_of_bounds", 99_999.0),
        ("dcgm", "sm_active", "out_of_bounds", 150.0),
    ]


def test_an_unreadable_answer_is_recorded_as_a_problem(world: World, server: DcgmServer) -> None:
    host = world.hosts["alpha"]
    good = every_field(first_gpu(host))
    big = good + "# " + "x" * (MAX_ANSWER_BYTES + 1 - len(good) - 2)
    elsewhere = server.serve(good, "/elsewhere")
    found = {
        PROBLEM.TOO_LARGE: scrape(host, server, big, path="/big"),
        PROBLEM.REDIRECT: scrape(host, server, good, path="/moved", status=302, Location=elsewhere),
        PROBLEM.STATUS: scrape(host, server, good, path="/bad", status=500),
        PROBLEM.ENCODED: scrape(host, server, good, path="/zip", Content_Encoding="gzip"),
        PROBLEM.NOT_TEXT: scrape(host, server, good.encode() + b"\xff", path="/bytes"),
        PROBLEM.NO_GPU: scrape(host, server, "# nothing\n", path="/empty"),
    }
    assert {problem: target.problem for problem, target in found.items()} == {each: each for each in found}
    assert "/elsewhere" not in server.paths
    assert not DcgmScrape.objects.exists()
    largest = good + "# " + "x" * (MAX_ANSWER_BYTES - len(good) - 2)
    assert scrape(host, server, largest, path="/largest").problem == ""


def test_an_answer_with_a_length_above_the_limit_is_not_read(world: World, server: DcgmServer) -> None:
    length = str(MAX_ANSWER_BYTES + 1)
    target = scrape(world.hosts["alpha"], server, "x", path="/length", Content_Length=length)
    assert target.problem == PROBLEM.TOO_LARGE


def test_an_answer_that_does_not_end_is_given_up_and_others_are_read(
    world: World, server: DcgmServer
) -> None:
    alpha, beta = world.hosts["alpha"], world.hosts["beta"]
    set_target(alpha, server.url("/slow"), NOW)
    set_target(beta, server.serve(every_field(first_gpu(beta))), NOW)
    done = scrape_due_targets(NOW, timeout=0.5)
    assert (done.targets, done.problems) == (2, 1)
    assert DcgmTarget.objects.get(host=alpha).problem == PROBLEM.TIMEOUT
    assert DcgmTarget.objects.get(host=beta).problem == ""
    assert TIMEOUT_SECONDS == 5.0


def test_a_run_in_which_no_target_answers_ends_before_the_time_limit_of_its_task() -> None:
    rounds = math.ceil(scrapes.TARGETS_PER_RUN / MAX_CONNECTIONS)
    assert rounds * TIMEOUT_SECONDS < TASK_TIME_LIMIT_SECONDS - 15


def test_a_host_that_accepts_no_connection_is_unreachable(world: World) -> None:
    with running_server() as closed:
        url = closed.url()
    set_target(world.hosts["alpha"], url, NOW)
    scrape_due_targets(NOW)
    assert DcgmTarget.objects.get().problem == PROBLEM.UNREACHABLE


@pytest.mark.parametrize("name", ["0.0.0.0", "0"])  # both reach the server on loopback if they are requested
def test_an_address_that_is_not_allowed_is_never_requested(
    world: World, server: DcgmServer, name: str
) -> None:
    host = world.hosts["alpha"]
    url = server.serve(every_field(first_gpu(host))).replace("127.0.0.1", name)
    set_target(host, url, NOW)  # as if the address had not been checked
    scrape_due_targets(NOW)
    assert DcgmTarget.objects.get().problem == PROBLEM.UNREACHABLE
    assert server.paths == []


def test_a_target_is_scraped_every_30_seconds_and_only_while_its_host_is_there(
    world: World, server: DcgmServer
) -> None:
    host = world.hosts["alpha"]
    set_target(host, server.serve(every_field(first_gpu(host))), NOW)
    seconds = [0, 5, 29, 30, 60]
    counts = [scrape_due_targets(NOW + timedelta(seconds=each)).targets for each in seconds]
    assert counts == [1, 0, 0, 1, 1]
    assert SCRAPE_INTERVAL.total_seconds() == 30
    Host.objects.filter(pk=host.pk).update(removed_at=NOW)
    assert scrape_due_targets(NOW + timedelta(hours=1)).targets == 0


def test_a_result_of_a_url_that_was_changed_meanwhile_is_not_stored(
    world: World, server: DcgmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = world.hosts["alpha"]
    set_target(host, server.serve(every_field(first_gpu(host))), NOW)
    read_values = scrapes.read_values

    def change_meanwhile(*args: Any) -> Any:
        changed.append(server.url("/other"))
        return read_values(*args)

    changed: list[str] = []
    monkeypatch.setattr(scrapes, "read_values", change_meanwhile)
    store = scrapes._store
    monkeypatch.setattr(
        scrapes, "_store", lambda *args: (DcgmTarget.objects.update(url=changed[0]), store(*args))
    )
    scrape_due_targets(NOW)
    assert not DcgmScrape.objects.exists()
    assert DcgmTarget.objects.get().succeeded_at is None


def xid_text(host: Host, xid: int) -> str:
    return exposition(gpu_labels(first_gpu(host)), {"DCGM_FI_DEV_XID_ERRORS": xid})


def scrape_xids(host: Host, server: DcgmServer, *xids: int) -> list[str]:
    """Scrape the host every 30 seconds with these XIDs. Return the codes of all events."""
    for number, xid in enumerate(xids):
        scrape(host, server, xid_text(host, xid), NOW + number * SCRAPE_INTERVAL)
    return list(HealthEvent.objects.order_by("at").values_list("code", flat=True))


def test_a_repeated_xid_is_one_event(world: World, server: DcgmServer) -> None:
    assert scrape_xids(world.hosts["alpha"], server, 0, 79, 79, 79, 94, 94) == ["xid:79", "xid:94"]
    event = HealthEvent.objects.earliest("at")
    assert (event.gpu, event.source) == (units_of(world.hosts["alpha"])[0].gpu, "dcgm")
    assert event.at >= NOW + SCRAPE_INTERVAL


def test_the_first_xid_of_a_target_is_no_event_because_its_time_is_unknown(
    world: World, server: DcgmServer
) -> None:
    assert scrape_xids(world.hosts["alpha"], server, 79, 79, 0, 79) == ["xid:79"]


@pytest.mark.parametrize("agent_is_first", [True, False])
def test_an_xid_that_the_agent_and_dcgm_report_is_one_event(
    world: World, server: DcgmServer, agent_is_first: bool
) -> None:
    host = world.hosts["alpha"]
    scrape_xids(host, server, 0)
    moment = NOW + timedelta(seconds=20)
    health = Health("e1", first_gpu(host), "kernel log", "xid:79", moment.timestamp(), "pid=7")
    if agent_is_first:
        assert record_health_event(host.pk, health, moment)
    scrape(host, server, xid_text(host, 79), NOW + SCRAPE_INTERVAL)
    if not agent_is_first:
        assert not record_health_event(host.pk, health, moment + timedelta(minutes=2))
    event = HealthEvent.objects.get()
    assert (event.event_id, event.source, event.detail) == ("e1", "kernel log", "pid=7")
    another = Health("e2", first_gpu(host), "kernel log", "xid:79", moment.timestamp() + 60, "")
    assert record_health_event(host.pk, another, moment + timedelta(minutes=2))
    assert not record_health_event(host.pk, health, moment + timedelta(minutes=3))
    assert HealthEvent.objects.count() == 2


def test_a_slow_reading_is_stored_when_it_changes(world: World, server: DcgmServer) -> None:
    host = world.hosts["alpha"]
    for number, count in enumerate((0, 0, 2, 2, 0)):
        text = exposition(gpu_labels(first_gpu(host)), {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": count})
        scrape(host, server, text, NOW + number * SCRAPE_INTERVAL)
    rows = SlowReading.objects.order_by("at").values_list("reading", "source", "value")
    assert list(rows) == [("ecc_corrected_volatile", "dcgm", count) for count in (0, 2, 0)]


def test_a_throttle_counter_is_stored_at_most_every_5_minutes(world: World, server: DcgmServer) -> None:
    host = world.hosts["alpha"]
    for number in range(21):
        text = exposition(gpu_labels(first_gpu(host)), {"DCGM_FI_DEV_POWER_VIOLATION": number * 1_000_000})
        scrape(host, server, text, NOW + number * SCRAPE_INTERVAL)
    millions = [
        value // 1_000_000 for value in SlowReading.objects.order_by("at").values_list("value", flat=True)
    ]
    assert millions[0] == 0 and len(millions) == 2
    assert 10 <= millions[1] <= 11


def test_old_values_are_deleted_and_the_last_slow_reading_is_kept(world: World, server: DcgmServer) -> None:
    host = world.hosts["alpha"]
    for number, count in enumerate((1, 2)):
        text = exposition(
            gpu_labels(first_gpu(host)), {"DCGM_FI_DEV_RETIRED_SBE": count, "DCGM_FI_DEV_GPU_TEMP": 40}
        )
        scrape(host, server, text, NOW + number * SCRAPE_INTERVAL)
    maintain_partitions(NOW + timedelta(minutes=50))
    assert DcgmScrape.objects.count() == 2
    maintain_partitions(NOW + timedelta(days=60))
    assert DcgmScrape.objects.count() == 0
    assert [row.value for row in SlowReading.objects.all()] == [2]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://gpu-01:9400/metrics", "http://gpu-01:9400/metrics"),
        (" https://10.1.2.3 ", "https://10.1.2.3/metrics"),
        ("http://gpu-01:9400/", "http://gpu-01:9400/metrics"),
        ("http://[2001:db8::1]:9400/x?y=1", "http://[2001:db8::1]:9400/x?y=1"),
        ("http://127.0.0.1:9400", "http://127.0.0.1:9400/metrics"),
        ("ftp://gpu-01/metrics", None),
        ("file:///etc/passwd", None),
        ("gpu-01:9400", None),
        ("", None),
        ("http://", None),
        ("http://user:secret@gpu-01:9400/", None),
        ("http://@gpu-01/", None),
        ("http://gpu-01/#x", None),
        ("http://gpu-01:99999/", None),
        ("http://gpu-01:0/", None),
        ("http://gpu 01/", None),
        ("http://gpu-01\n/", None),
        ("http://169.254.169.254/", None),
        ("http://[fe80::1]/", None),
        ("http://[::ffff:169.254.169.254]/", None),
        ("http://0.0.0.0/", None),
        ("http://224.0.0.1/", None),
        ("http://gpu-01/" + "x" * 300, None),
    ],
)
def test_only_http_urls_without_credentials_are_allowed(given: str, url: str | None) -> None:
    assert normalised_url(given) == url


def test_a_removed_target_is_not_scraped_and_its_values_stay(world: World, server: DcgmServer) -> None:
    host = world.hosts["alpha"]
    scrape(host, server, every_field(first_gpu(host)))
    assert remove_target(host)
    assert not remove_target(host)
    assert scrape_due_targets(NOW + timedelta(hours=1)).targets == 0
    assert DcgmScrape.objects.count() == 1


def test_the_bits_of_the_readings_follow_the_order_of_the_columns_of_a_sample() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM telemetry_sample LIMIT 0")
        columns = [column.name for column in cursor.description]
    readings = [name for name in columns if name in {**READING_KINDS, **DCGM_READING_KINDS}]
    assert readings == list(DCGM_BITS)
    assert [bit.bit_length() - 1 for bit in DCGM_BITS.values()] == list(range(len(readings)))
    assert set(SAMPLE_FIELDS) | {"energy_mj", "processes", "stray_processes"} == set(DCGM_BITS)
    assert len(DCGM_BITS) < 53  # the sum of the bits passes through a float
