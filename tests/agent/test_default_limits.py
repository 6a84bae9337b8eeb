"""Test the limits of a run that its request leaves open, and which process the kernel ends first."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.gpu.reader import GpuInventory
from agent.host.oom_protection import AGENT_OOM_SCORE, protect_from_oom_killer
from agent.isolation.cgroups import V1_CPU_SHARES_PER_WEIGHT, CgroupLimits
from agent.protocol import SLOTS_PER_GPU, GpuSeen, RunWanted, UnitSeen
from agent.runs import disk_pressure
from agent.runs.default_limits import gpu_share, host_memory_mib, run_limits, scratch_limit_bytes
from agent.runs.local_run import LocalRun
from agent.runs.reconcile import StopRun
from agent.shim.workload_entry import WORKLOAD_OOM_SCORE
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

GIB = 1 << 30
LAUNCHERS = ("bubblewrap", pytest.param("plain", marks=pytest.mark.long))


def gpu(index: int, parts: int = 1) -> GpuSeen:
    size = SLOTS_PER_GPU // parts
    units = [UnitSeen(f"unit-{index}-{at}", "", at * size, size, 1000) for at in range(parts)]
    return GpuSeen(index, f"gpu-{index}", "H100-80GB", 80_000, units=units)


EIGHT = [gpu(0, parts=4), *(gpu(index) for index in range(1, 8))]


def wanted(*units: str, **more: int) -> RunWanted:
    return job("true", unit_uuids=list(units), **more)


def test_the_share_of_a_run_is_that_of_its_gpus_and_slices() -> None:
    assert gpu_share(["unit-1-0"], EIGHT) == 1 / 8
    assert gpu_share(["unit-0-2"], EIGHT) == 1 / 32
    assert gpu_share([unit.uuid for each in EIGHT for unit in each.units], EIGHT) == 1
    assert gpu_share(["unit-1-0", "of a lost GPU"], EIGHT) == 1, "an unreadable GPU limits nobody"
    assert gpu_share([], EIGHT) == 1


def test_a_request_without_limits_gets_its_share_of_the_host() -> None:
    limits = run_limits(wanted("unit-1-0", "unit-2-0"), EIGHT, 1024 * 1024, 16_384)
    assert limits == CgroupLimits(
        cpu_milli=0, memory_mib=(1024 * 1024 - 8192) // 4, processes=4096, cpu_weight=250
    )
    small = run_limits(wanted("unit-0-0"), EIGHT, 16 * 1024, 16_384)
    assert (small.memory_mib, small.processes, small.cpu_weight) == (1024, 512, 31)


def test_a_request_decides_about_its_own_limits() -> None:
    asked = run_limits(wanted("unit-1-0", cpu_milli=2500, memory_mib=500_000), EIGHT, 1024 * 1024, 16_384)
    assert (asked.cpu_milli, asked.memory_mib, asked.cpu_weight) == (2500, 500_000, 125)
    few = run_limits(wanted("unit-1-0"), EIGHT, 1024 * 1024, 100)
    assert few.processes == 100, "the operator's limit is never exceeded"


@pytest.mark.sandbox
@pytest.mark.parametrize("launcher", LAUNCHERS)
async def test_a_run_without_a_request_gets_its_share_with_each_launcher(
    edge: FakeEdge, make_agent: MakeAgent, launcher: str
) -> None:
    """Read the control groups of a run with one of two GPUs on the host."""
    agent = await make_agent(launcher=launcher)
    if not {"cpu", "memory", "pids"} <= set(edge.observed[-1].inventory.limits):
        pytest.skip("not run: the control groups of this machine are not writable")
    await edge.want(job("sleep 300", units=agent.units[:1]))
    await edge.until_state("run-1", "running")
    spec = json.loads((agent.state / "runs" / "run-1" / "spec.json").read_text())
    folders = [Path(name).parent for name in spec["cgroup_procs"]]

    def value_of(*names: str) -> int:
        return next(
            int((folder / name).read_text())
            for name in names
            for folder in folders
            if (folder / name).exists()
        )

    memory_mib = value_of("memory.limit_in_bytes", "memory.max") >> 20
    expected = run_limits(job("true", unit_uuids=["unit-1-0"]), [gpu(1), gpu(2)], host_memory_mib(), 16_384)
    assert memory_mib == expected.memory_mib < host_memory_mib() / 2
    assert value_of("pids.max") == 8192
    assert value_of("cpu.shares", "cpu.weight") in (500 * V1_CPU_SHARES_PER_WEIGHT, 500)


def test_temporary_files_are_limited_to_the_share_once_the_disk_is_half_full() -> None:
    assert scratch_limit_bytes(1 / 8, 800 * GIB, 399 * GIB) == 0
    assert scratch_limit_bytes(1 / 8, 800 * GIB, 400 * GIB) == 100 * GIB
    assert scratch_limit_bytes(1 / 800, 80 * GIB, 60 * GIB) == GIB
    assert scratch_limit_bytes(1.0, 800 * GIB, 700 * GIB) == 0
    assert scratch_limit_bytes(1 / 8, GIB // 2, GIB // 2) == 0


async def test_a_run_that_takes_more_than_its_share_of_a_half_full_disk_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {"small": 150 * GIB, "large": 150 * GIB}
    runs = {
        "small": LocalRun(tmp_path / "a", {"run": "small", "kind": "job", "unit_uuids": ["unit-1-0"]}),
        "large": LocalRun(
            tmp_path / "b", {"run": "large", "kind": "job", "unit_uuids": ["unit-2-0", "unit-3-0"]}
        ),
    }
    for run in runs.values():
        run.shim = {"started_at": 1.0}
    stopped: list[StopRun] = []
    here = SimpleNamespace(
        state=SimpleNamespace(folder=tmp_path),
        runs=runs,
        trash=SimpleNamespace(is_emptied=False),
        hardware=GpuInventory(gpus=EIGHT),
        stop=stopped.append,
    )
    monkeypatch.setattr(disk_pressure, "measure_bytes", lambda there: {run.id: used[run.id] for run in there})
    monkeypatch.setattr(
        disk_pressure.shutil,
        "disk_usage",
        lambda folder: SimpleNamespace(total=800 * GIB, used=500 * GIB, free=300 * GIB),
    )
    await disk_pressure.DiskPressure(here, 0).look(11.0)  # type: ignore[arg-type]
    assert [order.run for order in stopped] == ["small"]


def test_the_agent_is_protected_and_says_so_if_the_kernel_refuses(tmp_path: Path) -> None:
    score = tmp_path / "oom_score_adj"
    score.write_text("0\n")
    assert protect_from_oom_killer(score) == [] and int(score.read_text()) == AGENT_OOM_SCORE
    score.write_text("-950\n")
    assert protect_from_oom_killer(score) == [] and int(score.read_text()) == -950
    (note,) = protect_from_oom_killer(tmp_path / "missing")
    assert "may end the agent" in note


async def test_a_workload_is_ended_before_the_agent_if_memory_runs_out(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await edge.want(job("cat /proc/self/oom_score_adj"))
    await edge.until_state("run-1", "ended")
    await edge.until(lambda: edge.log("run-1"))
    assert edge.log("run-1").strip() == str(WORKLOAD_OOM_SCORE)


def test_the_service_unit_protects_the_agent() -> None:
    unit = Path(__file__).parents[2] / "deploy" / "systemd" / "gpupool-agent.service"
    assert f"OOMScoreAdjust={AGENT_OOM_SCORE}\n" in unit.read_text()
