"""Test that a GPU has one tenant on its host.

Each protection is tested alone. Without it, a second tenant would get the GPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.gpu import handover
from agent.gpu.handover import HandoverCheck
from agent.gpu.reader import GpuProcess, GpuReadError
from agent.gpu.simulated_faults import plant_stray
from agent.host import gpu_locks
from agent.host.gpu_locks import SlotClaim
from agent.host.state import Generations
from agent.protocol import SampleRow
from agent.runs.reconcile import RefuseRun, StartRun, plan_actions
from tests.agent.conftest import AgentProcess, job
from tests.agent.fake_edge import FakeEdge

WHOLE = SlotClaim("GPU-1", 0, 840)


def test_the_generation_record_alone_rejects_a_stale_generation(tmp_path: Path) -> None:
    generations = Generations(tmp_path / "generations.json")
    generations.use(7, ["GPU-1"])
    for generation in (7, 6):
        run = job("true", generation=generation, units=["GPU-1"])
        wanted = FakeEdge(wanted={run.run: run}).desired()
        known = frozenset({"GPU-1"})
        (refused,) = plan_actions(wanted, [], refusal=generations.refusal, known_units=known, heard_at=0)
        assert isinstance(refused, RefuseRun)
        (lost,) = plan_actions(
            wanted, [], refusal=lambda generation, units: "", known_units=known, heard_at=0
        )
        assert isinstance(lost, StartRun)


def test_the_lock_alone_protects_a_unit_held_by_a_living_process(tmp_path: Path) -> None:
    held = gpu_locks.lock_slots(tmp_path / "one", [WHOLE])
    child = subprocess.Popen(["/bin/sleep", "60"], pass_fds=held.descriptors)
    try:
        held.close()  # now only the child has the lock file open, like a shim after the end of its agent
        with pytest.raises(gpu_locks.SlotsLocked):
            gpu_locks.lock_slots(tmp_path / "one", [WHOLE])
        # Locks in a separate folder exclude no other process.
        gpu_locks.lock_slots(tmp_path / "two", [WHOLE]).close()
    finally:
        child.kill()
        child.wait()
    gpu_locks.lock_slots(tmp_path / "one", [WHOLE]).close()


async def test_the_lease_alone_stops_a_job_of_a_disconnected_host(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.lease_seconds = 6.0
    for number in (1, 2):
        await edge.want(
            job("sleep 60", generation=number, units=[agent.units[number - 1]], grace_seconds=1.0)
        )
        await edge.until_state(f"run-{number}", "running")
    await agent.kill()
    (agent.state / "runs" / "run-2" / "lease").write_text(f"{9e9:020.3f}")
    await edge.until(lambda: (agent.state / "runs" / "run-1" / "exit.json").exists())
    assert not (agent.state / "runs" / "run-2" / "exit.json").exists()


# Checks of the GPU before the next tenant


def rows(memory_mib: int | None) -> list[SampleRow]:
    return [SampleRow(unit="GPU-1", ts=0.0, memory_used_mib=memory_mib)]


def processes_on_gpu(*pids: int) -> list[GpuProcess]:
    return [GpuProcess("GPU-1", "GPU-1", pid) for pid in pids]


def test_leftovers_of_a_tenant_are_found_relative_to_the_baseline(tmp_path: Path) -> None:
    unit = HandoverCheck(tmp_path / "units.json", "a boot")
    assert unit.describe_leftovers(["GPU-1"], rows(600), processes_on_gpu(5)) == "", (
        "there is no baseline yet"
    )
    unit.record_baseline(["GPU-1"], rows(600), processes_on_gpu(5))
    again = HandoverCheck(tmp_path / "units.json", "a boot")  # a restarted agent reads the stored baseline
    assert (
        again.describe_leftovers(["GPU-1"], rows(600 + handover.MEMORY_TOLERANCE_MIB), processes_on_gpu(5))
        == ""
    )
    left = again.describe_leftovers(["GPU-1"], rows(600), processes_on_gpu(5, 6))
    assert "process of an earlier workload" in left and "6" not in left
    assert "30000 MiB of an earlier workload" in again.describe_leftovers(
        ["GPU-1"], rows(30_600), processes_on_gpu()
    )
    with pytest.raises(GpuReadError):  # the memory in use was known before: an unknown value is not "clean"
        again.describe_leftovers(["GPU-1"], rows(None), processes_on_gpu())
    with pytest.raises(GpuReadError):
        again.describe_leftovers(["GPU-2"], rows(30_600), processes_on_gpu())
    booted = HandoverCheck(tmp_path / "units.json", "another boot")
    assert booted.describe_leftovers(["GPU-1"], rows(30_600), processes_on_gpu(6)) == "", (
        "nothing of an earlier tenant survives a reboot"
    )


def test_a_restarted_system_service_is_no_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = HandoverCheck(tmp_path / "units.json", "a boot")
    unit.record_baseline(["GPU-1"], rows(600), processes_on_gpu(5))
    # Systemd created the cgroup of process 7.
    monkeypatch.setattr(handover, "is_system_service", lambda pid: pid == 7)
    assert unit.describe_leftovers(["GPU-1"], rows(600), processes_on_gpu(7)) == ""
    assert unit.describe_leftovers(["GPU-1"], rows(600), processes_on_gpu(6, 7)) != ""


async def test_the_next_workload_waits_for_the_processes_of_the_last_workload(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    unit = agent.units[0]
    await edge.want(job("true", generation=1, units=[unit]))
    await edge.until_state("run-1", "ended")
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    plant_stray(agent.state, 0, left.pid)
    await edge.want(job("true", generation=2, units=[unit]))
    await edge.until(
        lambda: (seen := edge.seen("run-2")) and "a process of an earlier workload" in seen.step, 10
    )
    seen = edge.seen("run-2")
    assert seen is not None and seen.state == "starting"
    os.kill(left.pid, signal.SIGKILL)
    left.wait()
    assert (await edge.until_state("run-2", "ended")).outcome == "finished"
