"""Test that the command line shows the use of a run, its processes and a host."""

from __future__ import annotations

import json
from datetime import timedelta

from telemetry.models import HostUse, ProcessUse, RunUse, SlowReading
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.cli.test_hosts import run_ok
from tests.telemetry.rows import hold, workload
from tests.world import World, units_of


def test_the_use_of_a_run_and_of_its_processes_is_printed(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    now = served_world.now
    work = workload(
        served_world,
        served_world.vision,
        name="fit",
        state="running",
        submitted_at=now - timedelta(minutes=6),
        attempt=1,
    )
    held = hold(work, units_of(served_world.hosts["alpha"])[0], now - timedelta(minutes=5))
    RunUse.objects.create(
        run_id=held.run_id, ts=now, cpu_seconds=7_500.0, memory_peak_mib=2048, io_read_bytes=5 * 10**9
    )
    ProcessUse.objects.create(
        unit=held.unit, ts=now, run_id=held.run_id, pid=4321, name="python", sm_percent=40.0
    )
    sign_in(served_world.vision.member)
    shown = run_ok(gpupool, "use fit")
    for text in ("alpha", "2 h 5 min", "2 GiB", "5.0 GB", "not measured", "4321", "python", "40 %"):
        assert text in shown, text
    assert json.loads(run_ok(gpupool, "use fit --json"))["processes"][0]["pid"] == 4321
    type(work).objects.filter(pk=work.pk).update(state="ended", outcome="finished")
    assert "python" not in run_ok(gpupool, f"use {work.public_id}")
    sign_in(served_world.language.member)
    assert gpupool("use", "fit").code == 4


def test_the_use_of_a_host_and_the_counters_of_its_gpus_are_printed(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    assert "has reported no use" in run_ok(gpupool, "host use alpha")
    host, now = served_world.hosts["alpha"], served_world.now
    for minutes in (1, 0):
        count = (1 - minutes) * 60
        HostUse.objects.create(
            host=host,
            ts=now - timedelta(minutes=minutes),
            cpu_seconds=count * 3.0,
            memory_used_mib=2048,
            disk_bytes=10**12,
            disk_free_bytes=10**11,
            disks={"nvme0n1": [count * 10**6, 0]},
        )
    gpu = units_of(host)[0].gpu
    for reading, value in (("pcie_replays", 7), ("throttle_hw_thermal_ns", 5 * 10**9)):
        SlowReading.objects.create(gpu=gpu, reading=reading, value=value, at=now, source="nvml")
    shown = run_ok(gpupool, "host use alpha")
    for text in ("CPU cores", "3.0", "2 GiB", "nvme0n1, read", "1.0 MB/s", "100 GB of 1.0 TB are free"):
        assert text in shown, text
    assert "PCIe replays" in shown and "5.0 s" in shown


def test_the_changes_of_the_counters_of_a_host_are_printed(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    now = served_world.now
    period = (
        f"--start {(now - timedelta(hours=1)).isoformat()} --end {(now + timedelta(hours=1)).isoformat()}"
    )
    assert "No counter of its GPUs has changed" in run_ok(gpupool, f"host counters alpha {period}")
    gpu = units_of(served_world.hosts["alpha"])[0].gpu
    for reading, value in (("nvlink_replays", 3), ("ecc_corrected", 12), ("throttle_thermal_ns", 2 * 10**9)):
        SlowReading.objects.create(gpu=gpu, reading=reading, value=value, at=now, source="dcgm")
    shown = run_ok(gpupool, f"host counters alpha {period}")
    for text in ("nvlink_replays", "ecc_corrected", "12", "2.0 s", "dcgm"):
        assert text in shown, text
    only = json.loads(run_ok(gpupool, f"host counters alpha {period} --reading ecc_corrected --json"))
    assert [each["reading"] for each in only["series"]] == ["ecc_corrected"]
    refused = gpupool("host", "counters", "alpha", *period.split(), "--reading", "hats")
    assert refused.code != 0 and "hats" in refused.err
