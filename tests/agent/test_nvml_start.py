"""Test an agent that can't read a GPU, or can't use NVML, at its start or later.

Running work must continue, and the fault must be reported.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.gpu import nvml_reader
from agent.gpu.handover import HandoverCheck
from agent.gpu.known_hardware import HardwareCache, with_lost_gpus
from agent.gpu.nvml_reader import NvmlGpuReader
from agent.gpu.reader import GpuInventory, GpuReadError
from agent.host.state import StateFolder
from agent.isolation.launchers import PlainLauncher
from agent.protocol import GpuSeen, SampleRow, UnitSeen
from agent.runs import manager as agent_runs
from agent.runs.manager import RunManager
from tests.agent.conftest import ROOT, AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge
from tests.agent.test_nvml import faults, nvml_library

__all__ = ["faults", "nvml_library"]

REAL = ("--simulate", "", "--simulate-mig", "")


def lease(agent: AgentProcess, run: str) -> float:
    return float((agent.state / "runs" / run / "lease").read_text())


async def killed_agent_with_jobs(edge: FakeEdge, make_agent: MakeAgent) -> tuple[AgentProcess, int]:
    """Start an agent with jobs on both GPUs and kill it. Return (agent, pid of the second job's shim)."""
    agent = await make_agent(*REAL)
    for number in (0, 1):
        await edge.want(job("exec sleep 300", units=[f"GPU-fake-{number}"], generation=number + 1))
    for run in ("run-1", "run-2"):
        await edge.until_state(run, "running")
    await agent.kill()
    return agent, agent.shim("run-2")["pid"]


async def assert_jobs_continue(edge: FakeEdge, agent: AgentProcess, shim: int) -> None:
    """Check that both jobs still run and that the latest agent renews their leases."""
    before = {run: lease(agent, run) for run in ("run-1", "run-2")}
    for run in before:
        assert (await edge.until_state(run, "running")).outcome == ""
    await edge.until(lambda: all(lease(agent, run) > was for run, was in before.items()))
    assert agent.shim("run-2")["pid"] == shim
    assert [gpu.uuid for gpu in edge.observed[-1].inventory.gpus] == ["GPU-fake-0", "GPU-fake-1"]


def notes(edge: FakeEdge) -> str:
    return " ".join(edge.observed[-1].inventory.notes)


@pytest.mark.long
async def test_a_lost_gpu_does_not_prevent_the_use_of_other_gpus(
    edge: FakeEdge, make_agent: MakeAgent, faults: Path
) -> None:
    agent, shim = await killed_agent_with_jobs(edge, make_agent)
    faults.write_text("gone 1")
    await agent.start()
    await assert_jobs_continue(edge, agent, shim)
    assert "GPU 1 can't be read" in notes(edge)
    await edge.until(
        lambda: any((event.gpu, event.code) == ("GPU-fake-1", "nvml:lost") for event in edge.health)
    )
    await edge.change("run-1", verb="stop")
    await edge.change("run-2", verb="stop")
    await edge.want(job("exec sleep 300", units=["GPU-fake-1"], generation=3))
    await edge.want(job("exec sleep 300", units=["GPU-fake-0"], generation=4))
    await edge.until_state("run-4", "running")
    await edge.until(
        lambda: (
            (seen := edge.seen("run-3")) is not None and "can't be checked for earlier processes" in seen.step
        )
    )
    faults.unlink()
    await edge.until_state("run-3", "running", 120.0)
    assert "GPU 1 can't be read" not in notes(edge), "the note disappears once the GPU is readable again"


@pytest.mark.long
@pytest.mark.parametrize("fault", ["init fails", "hang"])
async def test_running_jobs_continue_and_no_gpu_job_starts_without_nvml(
    edge: FakeEdge, make_agent: MakeAgent, faults: Path, fault: str
) -> None:
    agent, shim = await killed_agent_with_jobs(edge, make_agent)
    faults.write_text(fault)
    await agent.start()
    await assert_jobs_continue(edge, agent, shim)
    assert "No workload starts on the GPUs of this host" in notes(edge)
    await edge.change("run-1", verb="stop")
    await edge.want(job("exec sleep 300", units=["GPU-fake-0"], generation=3))
    await edge.want(job("exec sleep 300", generation=4))
    await edge.until_state("run-4", "running")
    await edge.until_state("run-1", "ended")
    await edge.until(
        lambda: (
            (seen := edge.seen("run-3")) is not None and "can't be checked for earlier processes" in seen.step
        )
    )
    faults.unlink()
    await edge.until_state("run-3", "running", 120.0)
    assert "No workload starts" not in notes(edge)


@pytest.mark.long
async def test_an_unknown_gpu_is_used_as_soon_as_it_is_readable(
    edge: FakeEdge, make_agent: MakeAgent, faults: Path
) -> None:
    faults.write_text("gone 1")
    await make_agent(*REAL)
    assert "never identified" in notes(edge) and [gpu.index for gpu in edge.observed[-1].inventory.gpus] == [
        0
    ]
    faults.unlink()
    await edge.until(lambda: [gpu.index for gpu in edge.observed[-1].inventory.gpus] == [0, 1], 60.0)
    assert "never identified" not in notes(edge)
    await edge.want(job("exec sleep 300", units=["GPU-fake-1"]))
    await edge.until_state("run-1", "running")


@pytest.mark.parametrize(("words", "message"), [("init fails", "no GPU can be read here"), ("gone 0", "")])
def test_without_stored_inventory_one_readable_gpu_is_enough_to_start(
    faults: Path, words: str, message: str
) -> None:
    faults.write_text(words)
    found = subprocess.run([sys.executable, "-m", "agent", "probe"], capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == (1 if message else 0) and message in found.stderr
    if not message:
        hardware = json.loads(found.stdout)["hardware"]
        assert [gpu["uuid"] for gpu in hardware["gpus"]] == ["GPU-fake-1"]
        assert any("GPU 0 can't be read" in note and "never identified" in note for note in hardware["notes"])


async def test_each_failure_to_start_nvml_is_one_event(
    faults: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_reader, "RESTART_SECONDS", 0.0)
    before = NvmlGpuReader(kept=tmp_path / "hardware.json")
    await before.hardware()
    await before.close()
    faults.write_text("init fails")
    reader = NvmlGpuReader(kept=tmp_path / "hardware.json")
    with pytest.raises(GpuReadError):
        await reader.hardware()
    assert await reader.events(100.0) == [], "a short failure is no event"
    monkeypatch.setattr(nvml_reader, "UNREADABLE_AFTER_SECONDS", 0.0)
    found = await reader.events(101.0) + await reader.events(102.0)
    assert [(event.gpu, event.code, event.ts) for event in found] == [("", "nvml:unreadable", 101.0)]
    faults.unlink()
    for _ in range(200):  # the failed process may need some time to end
        assert await reader.events(103.0) == []
        if reader._silent_since is None:
            break
        await asyncio.sleep(0.05)
    faults.write_text("init fails")
    await reader.close()
    assert [event.code for event in await reader.events(104.0)] == ["nvml:unreadable"], (
        "a second failure after a recovery is a second event"
    )
    with pytest.raises(GpuReadError):
        await reader.occupancy(105.0)


async def test_a_slow_driver_at_the_start_does_not_count_as_hung(
    faults: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = NvmlGpuReader(kept=tmp_path / "hardware.json")
    known = await first.hardware()
    await first.close()
    monkeypatch.setattr(nvml_reader, "KNOWN_HARDWARE_TIMEOUT_SECONDS", 0.3)
    faults.write_text("hang")
    reader = NvmlGpuReader(deadline_seconds=0.1, kept=tmp_path / "hardware.json")
    with pytest.raises(GpuReadError) as problem:
        await reader.hardware()
    last = reader.last_known(str(problem.value))
    assert last is not None and last.gpus == known.gpus and last.devices == known.devices and last.unread
    assert await reader.events(100.0) == []
    monkeypatch.setattr(nvml_reader, "START_TIMEOUT_SECONDS", 0.0)
    assert [event.code for event in await reader.events(101.0)] == ["nvml:hung"]
    faults.unlink()
    await reader.close()


async def test_a_start_on_an_unreadable_gpu_fails_as_a_fault_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateFolder(tmp_path / "state")
    hardware = GpuInventory([gpu(0, "GPU-a")])
    runs = RunManager(
        state,
        PlainLauncher(),
        hardware,
        homes=tmp_path / "homes",
        locks_folder=tmp_path / "locks",
        exposed=[],
    )
    wanted = job("true", units=["GPU-a"])
    await runs.wait_for_readable_gpus(wanted, "no driver")
    (seen,) = runs.seen()
    assert seen.state == "starting" and "can't be checked for earlier processes (no driver)" in seen.step
    await runs.wait(wanted, "waiting: 5 MiB of an earlier workload are still in use")
    monkeypatch.setattr(agent_runs, "GPU_UNREADABLE_WAIT_SECONDS", -1.0)
    await runs.wait_for_readable_gpus(wanted, "no driver")
    (seen,) = runs.seen()
    assert (seen.state, seen.outcome, seen.gpu_unreadable) == ("ended", "start_failed", True)


def gpu(index: int, name: str, bus: str = "") -> GpuSeen:
    return GpuSeen(index, name, "H100-80GB", 81559, pci_bus_id=bus, units=[UnitSeen(name, "", 0, 840, 81559)])


def unread(index: int, pci: str = "") -> dict[str, Any]:
    return {"index": index, "pci": pci, "why": "GPU is lost"}


def test_a_lost_gpu_is_identified_by_pci_address_or_index() -> None:
    known = GpuInventory(
        [gpu(0, "A", "00000000:1A:00.0"), gpu(1, "B", "00000000:3B:00.0")], devices={"A": ["/dev/nvidia0"]}
    )
    by_bus = with_lost_gpus(
        GpuInventory([gpu(0, "B", "00000000:3B:00.0")]), [unread(1, "00000000:1A:00.0")], known
    )
    assert [(each.index, each.uuid) for each in by_bus.gpus] == [(0, "B"), (1, "A")] and set(by_bus.lost) == {
        "A"
    }
    assert by_bus.devices == {"A": ["/dev/nvidia0"]}
    by_index = with_lost_gpus(GpuInventory([gpu(1, "B")]), [unread(0)], known)
    assert [each.uuid for each in by_index.gpus] == ["A", "B"] and set(by_index.lost) == {"A"}
    unidentified = with_lost_gpus(GpuInventory([gpu(0, "A")]), [unread(1, "00000000:FF:00.0")], known)
    assert (
        [each.uuid for each in unidentified.gpus] == ["A"]
        and unidentified.lost == {}
        and "never identified" in unidentified.notes[0]
    )
    assert unidentified.unidentified_gpu_indices == [1] and by_bus.unidentified_gpu_indices == []
    gone = with_lost_gpus(GpuInventory([gpu(0, "A")]), [], known)
    assert [each.uuid for each in gone.gpus] == ["A"], "a GPU that the driver does not list is removed"


def test_a_gpu_that_becomes_readable_is_read_again() -> None:
    both = GpuInventory([gpu(0, "A"), gpu(1, "B")])
    lost = dataclasses.replace(both, lost={"B": "GPU is lost"})
    unidentified = GpuInventory([gpu(0, "A")], unidentified_gpu_indices=[1])
    silent = dataclasses.replace(both, unread="no driver")
    assert [each.unreadable for each in (both, lost, unidentified, silent)] == [set(), {"B"}, {1}, {"A", "B"}]
    assert both.recovered_since(lost) == both.recovered_since(unidentified) == [1]
    assert both.recovered_since(silent) == [0, 1] and lost.recovered_since(silent) == [0]
    assert dataclasses.replace(lost, lost={"B": "another reason"}).recovered_since(lost) == []
    assert unidentified.recovered_since(lost) == [], "a GPU that the driver no longer lists is not read"


def test_a_damaged_hardware_cache_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "hardware.json"
    hardware = GpuInventory([gpu(0, "A")], "999.01", devices={"A": ["/dev/nvidia0"]}, cuda_version="12.4")
    HardwareCache(path).keep(hardware)
    assert HardwareCache(path).hardware == hardware
    last = HardwareCache(path).without_nvml("no driver")
    assert last is not None and last.unread == "no driver" and "no driver" in last.notes[0]
    for damaged in ("{", '{"gpus": 3}', json.dumps({**dataclasses.asdict(hardware), "gpus": [{}]})):
        path.write_text(damaged)
        assert HardwareCache(path).hardware is None
    assert HardwareCache(tmp_path / "nothing").without_nvml("no driver") is None


def row(memory: int | None, processes: int | None) -> SampleRow:
    return SampleRow("GPU-a", 1.0, memory_used_mib=memory, processes=processes)


def test_a_gpu_that_stops_reporting_values_is_not_clean(
    tmp_path: Path,
) -> None:
    handover = HandoverCheck(tmp_path / "units.json", "a boot")
    with pytest.raises(GpuReadError, match="does not report GPU-a"):
        handover.describe_leftovers(["GPU-a"], [], [])
    assert handover.describe_leftovers(["GPU-a"], [row(None, None)], []) == "", (
        "the GPU had no tenant since the boot"
    )
    handover.record_baseline(["GPU-a"], [row(900, 0)], [])
    again = HandoverCheck(tmp_path / "units.json", "a boot")
    with pytest.raises(GpuReadError, match="memory in use"):
        again.describe_leftovers(["GPU-a"], [row(None, 0)], [])
    with pytest.raises(GpuReadError, match="no longer reports the processes"):
        again.describe_leftovers(["GPU-a"], [row(900, None)], [])
    assert again.describe_leftovers(["GPU-a"], [row(900, 0)], []) == ""
    again.record_baseline(["GPU-a"], [row(None, None)], [])
    assert again.describe_leftovers(["GPU-a"], [row(None, None)], []) == "", (
        "a GPU that never reported values is accepted"
    )
