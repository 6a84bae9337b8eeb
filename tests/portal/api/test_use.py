"""Test the use of runs, processes and hosts in the API: as on the pages, with unknown values as null."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.web.fleet.host_use import host_use_panel
from scheduler.models import Run
from telemetry.models import HostUse, ProcessUse, RunUse, SlowReading
from telemetry.reads.usage.run_use import last_run_use
from tests.portal.api.conftest import Client
from tests.telemetry.rows import hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
MIB = 2**20


def test_the_use_of_a_run_is_its_last_reading_and_its_processes(
    today_world: World, client_of: Client
) -> None:
    world, now = today_world, today_world.now
    work = workload(world, world.vision, state="running", submitted_at=now - timedelta(minutes=6), attempt=1)
    held = hold(work, units_of(world.hosts["alpha"])[0], now - timedelta(minutes=5))
    for minutes in (3, 2, 1):
        RunUse.objects.create(
            run_id=held.run_id,
            ts=now - timedelta(minutes=minutes),
            cpu_seconds=100.0 * (4 - minutes),
            memory_mib=1000 - minutes,
            memory_peak_mib=2000,
            io_read_bytes=(4 - minutes) * MIB,
        )
    ProcessUse.objects.create(
        unit=held.unit,
        ts=now,
        run_id=held.run_id,
        pid=4321,
        name="python",
        sm_percent=40.0,
        memory_mib=512,
    )
    address = f"/api/v1/workloads/{work.public_id}/use/"
    answer = client_of(world.vision.member).get(address).json()
    [run] = answer["runs"]
    assert (run["host"], run["cpu_seconds"], run["memory_mib"], run["memory_peak_mib"]) == (
        "alpha",
        300.0,
        999,
        2000,
    )
    assert (run["io_read_bytes"], run["io_written_bytes"], run["network_rx_bytes"]) == (3 * MIB, None, None)
    assert answer["processes"] == [
        {
            "host": "alpha",
            "gpu": 0,
            "profile": "",
            "pid": 4321,
            "name": "python",
            "sm_percent": 40.0,
            "memory_mib": 512,
        }
    ]
    assert client_of(world.language.member).get(address).status_code == 404
    type(work).objects.filter(pk=work.pk).update(state="ended", outcome="finished")
    ended = client_of(world.vision.member).get(address).json()
    assert ended["processes"] is None and ended["runs"] == answer["runs"]


def test_a_run_without_a_reading_is_listed_with_unknown_values(today_world: World, client_of: Client) -> None:
    world, now = today_world, today_world.now
    work = workload(world, world.vision, state="running", submitted_at=now, attempt=1)
    held = hold(work, units_of(world.hosts["alpha"])[0], now - timedelta(minutes=5))
    answer = client_of(world.operator).get(f"/api/v1/workloads/{work.public_id}/use/").json()
    [run] = answer["runs"]
    assert run["attempt"] == Run.objects.get(pk=held.run_id).attempt
    assert {run[name] for name in ("at", "cpu_seconds", "memory_mib", "network_tx_bytes")} == {None}
    assert answer["processes"] == []
    with CaptureQueriesContext(connection) as queries:
        assert len(last_run_use(work)) == 1
    assert len(queries) == 2


def test_the_use_of_a_host_is_the_same_as_on_its_page(today_world: World, client_of: Client) -> None:
    host, now = today_world.hosts["alpha"], today_world.now
    operator = client_of(today_world.operator)
    assert operator.get("/api/v1/hosts/alpha/use/").json() == {"use": None, "counters": []}
    for minutes in (2, 1, 0):
        count = (2 - minutes) * 60
        HostUse.objects.create(
            host=host,
            ts=now - timedelta(minutes=minutes, seconds=1),
            cpu_seconds=count * 3.0,
            memory_used_mib=2048,
            disk_bytes=10**12,
            disk_free_bytes=10**11,
            disks={"nvme0n1": [count * 10**6, 0]},
            networks={"eth0": [0, count * 10**3]},
        )
    gpu = units_of(host)[0].gpu
    SlowReading.objects.create(gpu=gpu, reading="pcie_replays", value=7, at=now, source="nvml")
    SlowReading.objects.create(gpu=gpu, reading="ecc_corrected", value=0, at=now, source="nvml")
    answer = operator.get("/api/v1/hosts/alpha/use/").json()
    use = answer["use"]
    assert use["cpu_cores"]["mean"] == pytest.approx(3.0)
    assert use["memory_mib"] == {"now": 2048, "mean": 2048, "peak": 2048}
    assert (use["disk_bytes"], use["disk_free_bytes"]) == (10**12, 10**11)
    [disk], [network] = use["disks"], use["networks"]
    assert disk["name"] == "nvme0n1" and disk["read"]["mean"] == pytest.approx(10**6)
    assert disk["written"]["mean"] == 0
    assert network["name"] == "eth0" and network["sent"]["mean"] == pytest.approx(10**3)
    [counter] = answer["counters"]
    assert (counter["gpu"], counter["label"], counter["value"]) == (0, "PCIe replays", 7)
    panel = host_use_panel(host, now)
    assert panel is not None
    assert len(panel["table"]["rows"]) == 2 + 2 * len(use["disks"]) + 2 * len(use["networks"])
