"""One GPU, one tenant, on the host: each layer holds by itself, and what it holds is lost without it."""

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


def test_a_stale_generation_is_refused_and_only_the_record_of_generations_sees_to_it(tmp_path: Path) -> None:
    generations = Generations(tmp_path / "generations.json")
    generations.use(7, ["GPU-1"])
    for generation in (7, 6):
        one = job("true", generation=generation, units=["GPU-1"])
        wanted = FakeEdge(wanted={one.run: one}).desired()
        known = frozenset({"GPU-1"})
        (held,) = plan_actions(wanted, [], refusal=generations.refusal, known_units=known, heard_at=0)
        assert isinstance(held, RefuseRun)
        (lost,) = plan_actions(
            wanted, [], refusal=lambda generation, units: "", known_units=known, heard_at=0
        )
        assert isinstance(lost, StartRun)


def test_a_unit_that_a_living_process_holds_is_not_given_and_only_the_lock_sees_to_it(tmp_path: Path) -> None:
    held = gpu_locks.lock_slots(tmp_path / "one", [WHOLE])
    heir = subprocess.Popen(["/bin/sleep", "60"], pass_fds=held.descriptors)
    try:
        held.close()  # the agent is gone; the workload is not
        with pytest.raises(gpu_locks.SlotsLocked):
            gpu_locks.lock_slots(tmp_path / "one", [WHOLE])
        gpu_locks.lock_slots(tmp_path / "two", [WHOLE]).close()  # a lock that is not shared keeps nobody out
    finally:
        heir.kill()
        heir.wait()
    gpu_locks.lock_slots(tmp_path / "one", [WHOLE]).close()


async def test_work_of_a_host_that_hears_nothing_stops_by_itself_and_only_its_lease_sees_to_it(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.lease_seconds = 2.0
    for number in (1, 2):
        await edge.want(
            job("sleep 60", generation=number, units=[agent.units[number - 1]], grace_seconds=1.0)
        )
        await edge.until_state(f"run-{number}", "running")
    await agent.kill()
    (agent.state / "runs" / "run-2" / "lease").write_text(f"{9e9:020.3f}")
    await edge.until(lambda: (agent.state / "runs" / "run-1" / "exit.json").exists(), 6)
    assert not (agent.state / "runs" / "run-2" / "exit.json").exists()


# -- the GPU itself, before the next tenant -------------------------------------------------------------------------------


def rows(memory_mib: int | None) -> list[SampleRow]:
    return [SampleRow(unit="GPU-1", ts=0.0, memory_used_mib=memory_mib)]


def on_it(*pids: int) -> list[GpuProcess]:
    return [GpuProcess("GPU-1", "GPU-1", pid) for pid in pids]


def test_what_a_tenant_leaves_is_seen_and_what_was_there_before_it_is_not_its(tmp_path: Path) -> None:
    unit = HandoverCheck(tmp_path / "units.json", "a boot")
    assert unit.left(["GPU-1"], rows(600), on_it(5)) == "", "nothing is known of before"
    unit.record_baseline(["GPU-1"], rows(600), on_it(5))
    again = HandoverCheck(
        tmp_path / "units.json", "a boot"
    )  # an agent that was started again knows it as well
    assert again.left(["GPU-1"], rows(600 + handover.MEMORY_TOLERANCE_MIB), on_it(5)) == ""
    left = again.left(["GPU-1"], rows(600), on_it(5, 6))
    assert "process of an earlier workload" in left and "6" not in left
    assert "30000 MiB of an earlier workload" in again.left(["GPU-1"], rows(30_600), on_it())
    with pytest.raises(GpuReadError):  # what it told before and does not tell now is not clean
        again.left(["GPU-1"], rows(None), on_it())
    with pytest.raises(GpuReadError):
        again.left(["GPU-2"], rows(30_600), on_it())
    booted = HandoverCheck(tmp_path / "units.json", "another boot")
    assert booted.left(["GPU-1"], rows(30_600), on_it(6)) == "", (
        "nothing of an earlier tenant outlives the host"
    )


def test_a_service_that_was_started_again_on_a_gpu_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = HandoverCheck(tmp_path / "units.json", "a boot")
    unit.record_baseline(["GPU-1"], rows(600), on_it(5))
    monkeypatch.setattr(handover, "is_system_service", lambda pid: pid == 7)  # systemd made its control group
    assert unit.left(["GPU-1"], rows(600), on_it(7)) == ""
    assert unit.left(["GPU-1"], rows(600), on_it(6, 7)) != ""


async def test_the_next_workload_waits_until_the_gpu_says_that_the_last_one_has_left_it(
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
