"""Test cgroups.

Limits are tested with this machine's cgroups of any version. Other layouts are tested with a fake file tree.
The fake tree shows the written values, but not that a kernel enforces these values.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.host.processes import is_alive, read_process, scan
from agent.isolation.cgroups import MAX_PROCESSES_PER_RUN, CgroupLimits, Cgroups, CgroupUse
from agent.shim import process_tree, workload_entry
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

REAL = Cgroups()
needs_cgroups = pytest.mark.skipif(
    not REAL.limits_everything, reason="the cgroups of this machine cannot be written"
)
needs_devices_controller = pytest.mark.skipif(
    "devices" not in REAL.available_controllers, reason="no devices controller of version 1 here"
)


def mounts(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "mounts"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def v1_hierarchy(tmp_path: Path, *controllers: str) -> str:
    """Create a fake hierarchy of version 1 and return its line in /proc/mounts."""
    place = tmp_path / "-".join(controllers)
    place.mkdir()
    return f"cgroup {place} cgroup rw,relatime,{','.join(controllers)} 0 0"


def v2_hierarchy(tmp_path: Path, controllers: str) -> str:
    """Create a fake hierarchy of version 2 and return its line in /proc/mounts."""
    place = tmp_path / "unified"
    (place / "gpupool").mkdir(parents=True)
    (place / "cgroup.controllers").write_text(controllers)
    return f"cgroup2 {place} cgroup2 rw,relatime 0 0"


LIMITS = CgroupLimits(cpu_milli=1500, memory_mib=64, processes=100, devices=["/dev/null"])


def test_on_version_1_each_limit_is_written_to_its_hierarchy(tmp_path: Path) -> None:
    lines = [
        v1_hierarchy(tmp_path, "cpu", "cpuacct"),
        v1_hierarchy(tmp_path, "memory"),
        v1_hierarchy(tmp_path, "pids"),
        v1_hierarchy(tmp_path, "devices"),
    ]
    cgroups = Cgroups(mounts(tmp_path, *lines))
    assert (cgroups.layout, cgroups.available_controllers, cgroups.notes) == (
        "v1",
        ["cpu", "memory", "pids", "devices"],
        [],
    )
    run_cgroups = cgroups.make("run", LIMITS)
    assert (tmp_path / "cpu-cpuacct/gpupool/run/cpu.cfs_quota_us").read_text() == "150000"
    assert (tmp_path / "memory/gpupool/run/memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (tmp_path / "pids/gpupool/run/pids.max").read_text() == "100"
    assert (tmp_path / "devices/gpupool/run/devices.deny").read_text() == "a"
    assert run_cgroups.memory_events == str(tmp_path / "memory/gpupool/run/memory.oom_control")
    assert len(run_cgroups.procs) == 4


def test_a_removed_parent_cgroup_is_made_again(tmp_path: Path) -> None:
    cgroups = Cgroups(mounts(tmp_path, v1_hierarchy(tmp_path, "pids"), v2_hierarchy(tmp_path, "cpu memory")))
    (tmp_path / "pids/gpupool").rmdir()
    shutil.rmtree(tmp_path / "unified/gpupool")
    cgroups.make("run", LIMITS)
    assert (tmp_path / "pids/gpupool/run/pids.max").read_text() == "100"
    assert (tmp_path / "unified/gpupool/run/cpu.max").read_text() == "150000 100000"
    assert (tmp_path / "unified/gpupool/cgroup.subtree_control").exists(), (
        "its controllers are enabled for the runs again"
    )


def test_on_version_2_one_cgroup_has_all_limits_except_devices(tmp_path: Path) -> None:
    cgroups = Cgroups(mounts(tmp_path, v2_hierarchy(tmp_path, "cpuset cpu io memory pids\n")))
    assert (cgroups.layout, cgroups.available_controllers, cgroups.limits_everything) == (
        "v2",
        ["cpu", "memory", "pids"],
        True,
    )
    assert [note for note in cgroups.notes if "device nodes" in note]
    run_cgroups = cgroups.make("run", LIMITS)
    group = tmp_path / "unified/gpupool/run"
    assert (group / "cpu.max").read_text() == "150000 100000"
    assert (group / "memory.max").read_text() == str(64 << 20)
    assert run_cgroups.procs == [str(group / "cgroup.procs")]
    assert run_cgroups.memory_events == str(group / "memory.events")
    assert (tmp_path / "unified/cgroup.subtree_control").exists()


def test_on_a_hybrid_host_each_controller_uses_its_own_version(tmp_path: Path) -> None:
    lines = [
        v2_hierarchy(tmp_path, "hugetlb pids\n"),
        v1_hierarchy(tmp_path, "cpu"),
        v1_hierarchy(tmp_path, "memory"),
    ]
    cgroups = Cgroups(mounts(tmp_path, *lines))
    assert (cgroups.layout, cgroups.available_controllers) == ("hybrid", ["cpu", "memory", "pids"])
    cgroups.make("run", LIMITS)
    assert (tmp_path / "unified/gpupool/run/pids.max").read_text() == "100"
    assert (tmp_path / "memory/gpupool/run/memory.limit_in_bytes").exists()


def test_the_memory_limit_includes_swap_if_the_kernel_counts_it(tmp_path: Path) -> None:
    cgroups = Cgroups(mounts(tmp_path, v1_hierarchy(tmp_path, "memory")))
    group = tmp_path / "memory/gpupool/run"
    group.mkdir(parents=True)
    (group / "memory.memsw.limit_in_bytes").write_text("")
    cgroups.make("run", LIMITS)
    assert (group / "memory.memsw.limit_in_bytes").read_text() == str(64 << 20)


def test_without_writable_cgroups_no_limit_is_set_and_the_host_reports_it(tmp_path: Path) -> None:
    cgroups = Cgroups(mounts(tmp_path, "cgroup2 /nowhere/at/all cgroup2 rw 0 0", "tmpfs /tmp tmpfs rw 0 0"))
    assert (cgroups.available_controllers, cgroups.limits_everything) == ([], False)
    assert "No limits of cpu, memory, pids per workload" in cgroups.notes[0]
    assert cgroups.make("run", LIMITS).procs == []
    assert Cgroups(mounts(tmp_path)).layout == "none"


@pytest.mark.parametrize(
    ("text", "kills"),
    [
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3),  # memory.oom_control of version 1
        ("low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n", 2),  # memory.events of version 2
        ("oom_kill_disable 0\nunder_oom 0\n", None),  # kernels before 4.13 do not report the number of kills
    ],
)
def test_out_of_memory_kills_are_read_in_both_versions(tmp_path: Path, text: str, kills: int | None) -> None:
    (tmp_path / "events").write_text(text)
    assert process_tree.out_of_memory_kills(str(tmp_path / "events")) == kills


# On this machine


def test_the_use_of_a_run_is_read_in_both_versions(tmp_path: Path) -> None:
    old = Cgroups(
        mounts(tmp_path, v1_hierarchy(tmp_path, "cpu", "cpuacct"), v1_hierarchy(tmp_path, "memory"))
    )
    old.make("run", LIMITS)
    (tmp_path / "cpu-cpuacct/gpupool/run/cpuacct.usage").write_text("2500000000\n")
    (tmp_path / "memory/gpupool/run/memory.max_usage_in_bytes").write_text(f"{700 << 20}\n")
    assert old.use("run") == CgroupUse(cpu_seconds=2.5, memory_peak_mib=700)
    new = Cgroups(mounts(tmp_path, v2_hierarchy(tmp_path, "cpu memory")))
    new.make("run", LIMITS)
    group = tmp_path / "unified/gpupool/run"
    (group / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\n")
    (group / "memory.peak").write_text(f"{300 << 20}\n")
    assert new.use("run") == CgroupUse(cpu_seconds=1.5, memory_peak_mib=300)


def test_use_that_the_kernel_does_not_count_is_unknown_and_not_zero(tmp_path: Path) -> None:
    cgroups = Cgroups(mounts(tmp_path, v2_hierarchy(tmp_path, "cpu memory")))
    cgroups.make("run", LIMITS)
    (tmp_path / "unified/gpupool/run/cpu.stat").write_text("nr_periods 0\n")
    assert cgroups.use("run") == cgroups.use("another run") == CgroupUse(None, None)
    assert Cgroups(mounts(tmp_path)).use("run") == CgroupUse(None, None)


@needs_cgroups
async def test_the_report_of_an_ended_run_has_what_the_kernel_counted(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    name = f"test-{os.getpid()}-use"
    REAL.make(name, CgroupLimits())
    counted = REAL.use(name)
    REAL.remove(name)
    await make_agent(launcher="plain")
    await edge.want(job("""python3 -c 'x = bytearray(40 << 20); sum(range(10**7))'"""))
    ended = await edge.until_state("run-1", "ended")
    assert ended.exit_code == 0
    assert (ended.cpu_seconds is None) == (counted.cpu_seconds is None)
    assert (ended.memory_peak_mib is None) == (counted.memory_peak_mib is None)
    assert ended.cpu_seconds is None or 0 < ended.cpu_seconds < 600
    assert ended.memory_peak_mib is None or ended.memory_peak_mib >= 40


def test_the_layout_of_this_machine_matches_its_mounts() -> None:
    kinds = {line.split()[2] for line in Path("/proc/mounts").read_text().splitlines()} & {
        "cgroup",
        "cgroup2",
    }
    words = {("cgroup",): "v1", ("cgroup2",): "v2", ("cgroup", "cgroup2"): "hybrid", (): "none"}
    assert REAL.layout == words[tuple(sorted(kinds))]


@pytest.mark.long
@needs_cgroups
async def test_a_fork_bomb_stays_within_the_process_limit(edge: FakeEdge, make_agent: MakeAgent) -> None:
    agent = await make_agent("--most-processes", "40", launcher="bubblewrap")
    bomb = "for i in $(seq 200); do sleep 30 & done 2>/dev/null; echo still here"
    await edge.want(job(bomb, generation=1))
    await edge.until(lambda: len(run_processes(agent)) > 30)
    await edge.want(job("echo me too", generation=2))
    await edge.until(lambda: "me too" in edge.log("run-2"))
    counts: list[int] = []

    def count_again() -> bool:
        counts.append(len(run_processes(agent)))
        return len(counts) == 20

    await edge.until(count_again)
    assert 10 < max(counts) <= 40
    await edge.change("run-1", verb="stop", code="cancelled")
    await edge.until_state("run-1", "ended")
    assert not run_processes(agent)


def run_processes(agent: AgentProcess) -> set[int]:
    from agent.host import processes

    pid = agent.shim("run-1").get("pid")
    return {process.pid for process in processes.descendants(scan(), pid)} if pid else set()


@needs_cgroups
async def test_a_child_killed_for_memory_ends_the_run_as_out_of_memory(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    await make_agent(launcher="bubblewrap")
    command = """python3 -c "x = bytearray(300 << 20)"; echo "the child ended with $?"; exit 3"""
    wanted = job(command, memory_mib=80)
    await edge.want(wanted)
    ended = await edge.until_state(wanted.run, "ended")
    assert (ended.outcome, ended.exit_code) == ("out_of_memory", 3)


@needs_cgroups
async def test_a_failure_within_the_memory_limit_is_reported_as_failed(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    await make_agent(launcher="bubblewrap")
    wanted = job("kill -KILL $$", memory_mib=80)
    await edge.want(wanted)
    assert (await edge.until_state(wanted.run, "ended")).outcome == "failed"


@needs_cgroups
async def test_shared_memory_counts_towards_the_memory_limit(edge: FakeEdge, make_agent: MakeAgent) -> None:
    """Check that a workload cannot fill the memory of the host through /dev/shm."""
    agent = await make_agent(launcher="bubblewrap")
    wanted = job("df --output=size -m /dev/shm | tail -1; head -c 300M /dev/zero > /dev/shm/x", memory_mib=64)
    await edge.want(wanted)
    ended = await edge.until_state(wanted.run, "ended")
    output = await agent.printed(wanted.run)
    assert output.split()[0] == "64"
    assert ended.outcome == "out_of_memory" or "No space left" in output


@needs_cgroups
async def test_a_detached_process_is_ended_with_its_run(edge: FakeEdge, make_agent: MakeAgent) -> None:
    """Detach a process from its parents and its environment. The agent still finds it by its cgroup."""
    agent = await make_agent(launcher="plain")
    await edge.want(job("env -i /usr/bin/setsid /bin/sleep 300 & echo $!; wait"))
    await edge.until(lambda: edge.log("run-1").strip().isdigit())
    pid = int(edge.log("run-1"))
    process = read_process(pid)
    assert process is not None
    os.kill(agent.shim("run-1")["pid"], 9)
    await edge.until_state("run-1", "ended")
    await edge.until(lambda: not is_alive(pid, process.start_ticks), 5)


@needs_devices_controller
async def test_unassigned_devices_are_closed_even_outside_a_sandbox(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    await make_agent(launcher="plain")
    wanted = job(
        "head -c1 /dev/kmsg >/dev/null && echo got-in; head -c1 /dev/urandom >/dev/null && echo harmless;"
        " echo end"
    )
    await edge.want(wanted)
    await edge.until_state(wanted.run, "ended")
    await edge.until(lambda: edge.log(wanted.run).endswith("end\n"))
    assert "got-in" not in edge.log(wanted.run).split() and "harmless" in edge.log(wanted.run)


@needs_devices_controller
def test_assigned_devices_stay_open_to_a_run() -> None:
    """Use /dev/kmsg, which every machine has, instead of a device node of a GPU."""
    groups = Cgroups()
    opened = {}
    for name, devices in (("with", ["/dev/kmsg"]), ("without", [])):
        run_cgroups = groups.make(f"test-{os.getpid()}-{name}", CgroupLimits(devices=devices))
        done = subprocess.run(
            ["head", "-c1", "/dev/kmsg"],
            capture_output=True,
            preexec_fn=lambda: workload_entry.enter_workload({"cgroup_procs": run_cgroups.procs}),  # noqa: B023
        )
        opened[name] = b"not permitted" not in done.stderr
        groups.remove(f"test-{os.getpid()}-{name}")
    assert opened == {"with": True, "without": False}


@needs_cgroups
async def test_the_cgroups_of_an_ended_run_are_removed(edge: FakeEdge, make_agent: MakeAgent) -> None:
    agent = await make_agent(launcher="bubblewrap")
    await edge.want(job("true", memory_mib=64, cpu_milli=500))
    await edge.until_state("run-1", "ended")
    import json

    mark = json.loads((agent.state / "runs/run-1/run.json").read_text())["mark"]
    await edge.until(lambda: not any(folder.exists() for folder in Cgroups()._folders(mark)))
    assert Cgroups().members(mark) == set() and MAX_PROCESSES_PER_RUN > 0
