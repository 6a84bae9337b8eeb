"""Test the values that the agent collects once a minute: of runs, processes, the host and its GPUs."""

from __future__ import annotations

import dataclasses
import math
import types
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from agent.gpu.reader import GpuProcessUse, MinuteReadings, UnitUse
from agent.host.host_counters import busy_seconds, host_use, interface_bytes, used_memory_mib
from agent.isolation.cgroups import CgroupLimits, Cgroups, CgroupUse
from agent.protocol import GpuCountersSeen, RunUseSeen, SampleRow, UnitMinuteSeen
from agent.server.sample_spool import IMPOSSIBLE_READING, BatchUsage, SampleSpool
from agent.usage import RESEND_MINUTES, UsageCollector
from tests.agent.conftest import AgentProcess, job
from tests.agent.fake_edge import FakeEdge

UNIT, GPU = "GPU-1", "GPU-1"


class ScriptedReader:
    """A reader of GPUs whose values a test sets."""

    def __init__(self) -> None:
        self.readings = MinuteReadings()

    async def minute(self, now: float) -> MinuteReadings:
        return self.readings


def use(run: str, *pids: int) -> dict[str, UnitUse]:
    return {UNIT: UnitUse(run, frozenset(pids), 0.0, 1)}


@pytest.fixture
def reader() -> ScriptedReader:
    return ScriptedReader()


@pytest.fixture
def collector(reader: ScriptedReader, tmp_path: Path) -> UsageCollector:
    runs = types.SimpleNamespace(runs={}, final_uses=deque(), state=types.SimpleNamespace(folder=tmp_path))
    return UsageCollector(runs, reader, 5.0)  # type: ignore[arg-type]


async def test_a_mean_over_a_time_in_which_another_run_held_the_unit_is_unknown(
    collector: UsageCollector, reader: ScriptedReader
) -> None:
    reader.readings = MinuteReadings(units={UNIT: {"dram_active": 40.0, "pcie_rx_bytes": 7}})
    whole = UnitMinuteSeen(UNIT, 1.0, dram_active=40.0, pcie_rx_bytes=7)
    without = dataclasses.replace(whole, dram_active=None)
    assert (await collector.collect(use("one"), 1.0, 1.0)).units == [without]
    assert (await collector.collect(use("one"), 1.0, 1.0)).units == [whole]
    assert (await collector.collect(use("two"), 1.0, 1.0)).units == [without]
    assert (await collector.collect({}, 1.0, 1.0)).units == [without]


async def test_counters_are_sent_when_they_change_and_all_of_them_once_an_hour(
    collector: UsageCollector, reader: ScriptedReader
) -> None:
    async def sent(**counters: int) -> list[dict[str, int]]:
        reader.readings = MinuteReadings(counters={GPU: counters})
        found = await collector.collect({}, 1.0, 1.0)
        return [entry.values for entry in found.gpus]

    assert await sent(pcie_replays=1, throttle_power_ns=5) == [{"pcie_replays": 1, "throttle_power_ns": 5}]
    assert await sent(pcie_replays=1, throttle_power_ns=6) == [], "nanoseconds are sent every fifth minute"
    assert await sent(pcie_replays=0, throttle_power_ns=7) == [{"pcie_replays": 0}]
    for _ in range(3, 5):
        await sent(pcie_replays=0, throttle_power_ns=8)
    assert await sent(pcie_replays=0, throttle_power_ns=8) == [{"throttle_power_ns": 8}]
    for _ in range(6, RESEND_MINUTES):
        assert await sent(pcie_replays=0, throttle_power_ns=8) == []
    assert await sent(pcie_replays=0, throttle_power_ns=8) == [{"pcie_replays": 0, "throttle_power_ns": 8}]


async def test_only_processes_of_the_run_on_the_unit_are_attributed_to_it(
    collector: UsageCollector, reader: ScriptedReader
) -> None:
    reader.readings = MinuteReadings(
        processes=[GpuProcessUse(UNIT, 10, 100, 55.0), GpuProcessUse(UNIT, 11), GpuProcessUse("GPU-2", 10)]
    )
    found = (await collector.collect(use("one", 10), 1.0, 1.0)).processes
    assert [(each.unit, each.run, each.pid, each.sm_percent, each.memory_mib) for each in found] == [
        (UNIT, "one", 10, 55.0, 100)
    ]


def test_values_that_the_protocol_cannot_carry_become_impossible_in_the_spool(tmp_path: Path) -> None:
    spool = SampleSpool(tmp_path)
    usage = BatchUsage(
        units=[UnitMinuteSeen(UNIT, 1.0, dram_active=math.nan, pcie_rx_bytes=2**63)],
        gpus=[GpuCountersSeen(GPU, 1.0, {"pcie_replays": 2**64})],
        runs=[RunUseSeen("one", 1.0, cpu_seconds=math.inf)],
    )
    stored = spool.read(spool.add([SampleRow(UNIT, 1.0)], usage))
    assert (stored.units[0].dram_active, stored.units[0].pcie_rx_bytes) == (IMPOSSIBLE_READING,) * 2
    assert stored.gpus[0].values == {"pcie_replays": IMPOSSIBLE_READING}
    assert stored.runs[0].cpu_seconds == IMPOSSIBLE_READING
    assert stored.runs[0].memory_mib is None, "unknown stays unknown"


def test_the_use_of_the_host_is_read_without_partitions_loopback_and_droppable_caches(tmp_path: Path) -> None:
    proc, system = tmp_path / "proc", tmp_path / "sys"
    (proc / "net").mkdir(parents=True)
    (system / "block/nvme0n1/device").mkdir(parents=True)
    (system / "class/net/eth0/device").mkdir(parents=True)
    (proc / "stat").write_text("cpu  100 0 50 900 30 10 40 7 0 0\ncpu0 1 1 1 1\n")
    (proc / "meminfo").write_text("MemTotal: 4096 kB\nMemFree: 100 kB\nMemAvailable: 1024 kB\n")
    (proc / "diskstats").write_text(
        "259 0 nvme0n1 1 0 100 0 1 0 200 0 0 0 0\n259 1 nvme0n1p1 1 0 100 0 1 0 200 0 0 0 0\n"
    )
    (proc / "net/dev").write_text(
        "Inter-|   Receive\n face |bytes\n"
        "    lo: 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\n"
        "  eth0: 7 0 0 0 0 0 0 0 8 0 0 0 0 0 0 0\n"
        " veth1: 5 0 0 0 0 0 0 0 5 0 0 0 0 0 0 0\n"
    )
    found = host_use(tmp_path, 1.0, 2.0, proc, system)
    assert (found.cpu_seconds, found.memory_used_mib) == (2.0, 3)
    assert [(each.name, each.bytes_in, each.bytes_out) for each in found.disks] == [
        ("nvme0n1", 51200, 102400)
    ]
    assert [(each.name, each.bytes_in, each.bytes_out) for each in found.networks] == [("eth0", 7, 8)]
    assert found.disk_bytes is not None and found.disk_free_bytes is not None
    missing = host_use(tmp_path / "none", 1.0, 2.0, tmp_path / "none", system)
    assert (missing.cpu_seconds, missing.memory_used_mib, missing.disk_bytes) == (None, None, None)


def test_this_machine_can_be_read() -> None:
    assert busy_seconds(Path("/proc/stat").read_text()) > 0
    assert used_memory_mib(Path("/proc/meminfo").read_text()) > 0
    assert "lo" not in interface_bytes(Path("/proc/net/dev").read_text())


@pytest.mark.parametrize("version", [1, 2])
def test_the_memory_and_io_of_a_run_come_from_its_control_group(tmp_path: Path, version: int) -> None:
    mounts = tmp_path / "mounts"
    if version == 2:
        root = tmp_path / "v2"
        root.mkdir()
        (root / "cgroup.controllers").write_text("cpu memory pids io\n")
        mounts.write_text(f"cgroup {root} cgroup2 rw 0 0\n")
        files = {
            "memory.current": (root, str(5 << 20)),
            "memory.peak": (root, str(9 << 20)),
            "io.stat": (root, "8:0 rbytes=100 wbytes=20 rios=1\n8:16 rbytes=1 wbytes=2 rios=1\n"),
        }
    else:
        roots = {name: tmp_path / name for name in ("memory", "blkio")}
        for root in roots.values():
            root.mkdir()
        mounts.write_text("".join(f"cgroup {root} cgroup rw,{name} 0 0\n" for name, root in roots.items()))
        files = {
            "memory.usage_in_bytes": (roots["memory"], str(5 << 20)),
            "memory.max_usage_in_bytes": (roots["memory"], str(9 << 20)),
            "blkio.throttle.io_service_bytes": (
                roots["blkio"],
                "8:0 Read 100\n8:0 Write 20\n8:0 Total 120\n8:16 Read 1\n8:16 Write 2\nTotal 123\n",
            ),
        }
    groups = Cgroups(mounts)
    groups.make("one", CgroupLimits())
    assert groups.use("none") == CgroupUse()
    for name, (root, text) in files.items():
        (root / "gpupool" / "one" / name).write_text(text)
    found = groups.use("one")
    assert (found.memory_mib, found.memory_peak_mib) == (5, 9)
    assert (found.io_read_bytes, found.io_written_bytes) == (101, 22)
    assert "io" not in groups.available_controllers, "it sets no limit"


async def test_the_agent_sends_a_minute_of_its_host_its_runs_and_its_simulated_gpus(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    unit = agent.units[0]
    await edge.want(job("echo 75 > $GPUPOOL_SIMULATED_LOAD; sleep 300", units=[unit]))

    def entries(name: str) -> list[Any]:
        return [entry for batch in edge.batches for entry in getattr(batch, name)]

    await edge.until(lambda: entries("runs") and any(each.unit == unit for each in entries("processes")))
    assert entries("host")[0].cpu_seconds > 0
    assert entries("runs")[0].run == "run-1"
    assert entries("gpus")[0].values["pcie_replays"] == 0
    batch = next(batch for batch in edge.batches if batch.units)
    times = {(row.unit, row.ts) for row in batch.rows}
    assert {(each.unit, each.ts) for each in batch.units} <= times
    assert len(entries("host")) < len(edge.batches), "once a minute, not with each sample"
