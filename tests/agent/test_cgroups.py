"""Control groups. Limits are tried on this machine's own groups, whichever version they are; the choice between layouts that this
machine does not have, on a made tree of files: that shows what is written where, not that a kernel obeys it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from agent.host.processes import is_alive, read_process, scan
from agent.isolation.cgroups import MAX_PROCESSES_PER_RUN, CgroupLimits, Cgroups
from agent.shim import process_tree, workload_entry
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

REAL = Cgroups()
lacks_none = pytest.mark.skipif(
    not REAL.limits_everything, reason="the control groups of this machine can't be written"
)
lacks_devices = pytest.mark.skipif(
    "devices" not in REAL.available_controllers, reason="no devices controller of version 1 here"
)


def mounts(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "mounts"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def first(tmp_path: Path, *controllers: str) -> str:
    """A made hierarchy of version 1."""
    place = tmp_path / "-".join(controllers)
    place.mkdir()
    return f"cgroup {place} cgroup rw,relatime,{','.join(controllers)} 0 0"


def second(tmp_path: Path, controllers: str) -> str:
    """A made hierarchy of version 2."""
    place = tmp_path / "unified"
    (place / "gpupool").mkdir(parents=True)
    (place / "cgroup.controllers").write_text(controllers)
    return f"cgroup2 {place} cgroup2 rw,relatime 0 0"


LIMITS = CgroupLimits(cpu_milli=1500, memory_mib=64, processes=100, devices=["/dev/null"])


def test_on_version_1_each_limit_goes_to_its_own_hierarchy(tmp_path: Path) -> None:
    lines = [
        first(tmp_path, "cpu", "cpuacct"),
        first(tmp_path, "memory"),
        first(tmp_path, "pids"),
        first(tmp_path, "devices"),
    ]
    found = Cgroups(mounts(tmp_path, *lines))
    assert (found.layout, found.available_controllers, found.notes) == (
        "v1",
        ["cpu", "memory", "pids", "devices"],
        [],
    )
    made = found.make("run", LIMITS)
    assert (tmp_path / "cpu-cpuacct/gpupool/run/cpu.cfs_quota_us").read_text() == "150000"
    assert (tmp_path / "memory/gpupool/run/memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (tmp_path / "pids/gpupool/run/pids.max").read_text() == "100"
    assert (tmp_path / "devices/gpupool/run/devices.deny").read_text() == "a"
    assert made.memory_events == str(tmp_path / "memory/gpupool/run/memory.oom_control")
    assert len(made.procs) == 4


def test_a_group_above_the_runs_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    found = Cgroups(mounts(tmp_path, first(tmp_path, "pids"), second(tmp_path, "cpu memory")))
    (tmp_path / "pids/gpupool").rmdir()
    shutil.rmtree(tmp_path / "unified/gpupool")
    found.make("run", LIMITS)
    assert (tmp_path / "pids/gpupool/run/pids.max").read_text() == "100"
    assert (tmp_path / "unified/gpupool/run/cpu.max").read_text() == "150000 100000"
    assert (tmp_path / "unified/gpupool/cgroup.subtree_control").exists(), (
        "its controllers are lent to the runs again"
    )


def test_on_version_2_one_group_has_all_limits_and_devices_are_said_to_be_missing(tmp_path: Path) -> None:
    found = Cgroups(mounts(tmp_path, second(tmp_path, "cpuset cpu io memory pids\n")))
    assert (found.layout, found.available_controllers, found.limits_everything) == (
        "v2",
        ["cpu", "memory", "pids"],
        True,
    )
    assert [note for note in found.notes if "device nodes" in note]
    made = found.make("run", LIMITS)
    group = tmp_path / "unified/gpupool/run"
    assert (group / "cpu.max").read_text() == "150000 100000"
    assert (group / "memory.max").read_text() == str(64 << 20)
    assert made.procs == [str(group / "cgroup.procs")]
    assert made.memory_events == str(group / "memory.events")
    assert (tmp_path / "unified/cgroup.subtree_control").exists()


def test_on_a_hybrid_host_a_controller_is_where_its_version_is(tmp_path: Path) -> None:
    lines = [second(tmp_path, "hugetlb pids\n"), first(tmp_path, "cpu"), first(tmp_path, "memory")]
    found = Cgroups(mounts(tmp_path, *lines))
    assert (found.layout, found.available_controllers) == ("hybrid", ["cpu", "memory", "pids"])
    found.make("run", LIMITS)
    assert (tmp_path / "unified/gpupool/run/pids.max").read_text() == "100"
    assert (tmp_path / "memory/gpupool/run/memory.limit_in_bytes").exists()


def test_swap_is_no_way_round_the_memory_limit_where_the_kernel_counts_it(tmp_path: Path) -> None:
    found = Cgroups(mounts(tmp_path, first(tmp_path, "memory")))
    group = tmp_path / "memory/gpupool/run"
    group.mkdir(parents=True)
    (group / "memory.memsw.limit_in_bytes").write_text("")
    found.make("run", LIMITS)
    assert (group / "memory.memsw.limit_in_bytes").read_text() == str(64 << 20)


def test_where_no_group_can_be_written_nothing_is_limited_and_the_host_says_so(tmp_path: Path) -> None:
    found = Cgroups(mounts(tmp_path, "cgroup2 /nowhere/at/all cgroup2 rw 0 0", "tmpfs /tmp tmpfs rw 0 0"))
    assert (found.available_controllers, found.limits_everything) == ([], False)
    assert "No limits of cpu, memory, pids per workload" in found.notes[0]
    assert found.make("run", LIMITS).procs == []
    assert Cgroups(mounts(tmp_path)).layout == "none"


@pytest.mark.parametrize(
    ("text", "kills"),
    [
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3),  # memory.oom_control of version 1
        ("low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n", 2),  # memory.events of version 2
        ("oom_kill_disable 0\nunder_oom 0\n", None),  # a kernel before 4.13 does not tell
    ],
)
def test_how_many_were_killed_for_memory_is_read_in_both_versions(
    tmp_path: Path, text: str, kills: int | None
) -> None:
    (tmp_path / "events").write_text(text)
    assert process_tree.out_of_memory_kills(str(tmp_path / "events")) == kills


# on this machine


def test_this_machine_has_the_layout_that_its_mounts_say() -> None:
    kinds = {line.split()[2] for line in Path("/proc/mounts").read_text().splitlines()} & {
        "cgroup",
        "cgroup2",
    }
    words = {("cgroup",): "v1", ("cgroup2",): "v2", ("cgroup", "cgroup2"): "hybrid", (): "none"}
    assert REAL.layout == words[tuple(sorted(kinds))]


@lacks_none
async def test_a_fork_bomb_stays_within_its_number_of_processes(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    agent = await make_agent("--most-processes", "40", launcher="bubblewrap")
    bomb = "for i in $(seq 200); do sleep 30 & done 2>/dev/null; echo still here"
    await edge.want(job(bomb, generation=1))
    await edge.until(lambda: len(below(agent)) > 30)
    await edge.want(job("echo me too", generation=2))
    await edge.until(lambda: "me too" in edge.log("run-2"))
    most = 0
    for _ in range(20):
        most = max(most, len(below(agent)))
        time.sleep(0.05)
    assert 10 < most <= 40
    await edge.change("run-1", verb="stop", code="cancelled")
    await edge.until_state("run-1", "ended")
    assert not below(agent)


def below(agent: AgentProcess) -> set[int]:
    from agent.host import processes

    pid = agent.shim("run-1").get("pid")
    return {process.pid for process in processes.descendants(scan(), pid)} if pid else set()


@lacks_none
async def test_a_child_that_is_killed_for_memory_is_told_although_the_workload_only_failed(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    await make_agent(launcher="bubblewrap")
    hungry = """python3 -c "x = bytearray(300 << 20)"; echo "the child ended with $?"; exit 3"""
    wanted = job(hungry, memory_mib=80)
    await edge.want(wanted)
    ended = await edge.until_state(wanted.run, "ended")
    assert (ended.outcome, ended.exit_code) == ("out_of_memory", 3)


@lacks_none
async def test_a_failure_within_its_memory_is_only_a_failure(edge: FakeEdge, make_agent: MakeAgent) -> None:
    await make_agent(launcher="bubblewrap")
    wanted = job("kill -KILL $$", memory_mib=80)
    await edge.want(wanted)
    assert (await edge.until_state(wanted.run, "ended")).outcome == "failed"


@lacks_none
async def test_shared_memory_counts_as_the_workloads(edge: FakeEdge, make_agent: MakeAgent) -> None:
    """Else filling /dev/shm would take the memory of the host."""
    agent = await make_agent(launcher="bubblewrap")
    wanted = job("df --output=size -m /dev/shm | tail -1; head -c 300M /dev/zero > /dev/shm/x", memory_mib=64)
    await edge.want(wanted)
    ended = await edge.until_state(wanted.run, "ended")
    said = await agent.printed(wanted.run)
    assert said.split()[0] == "64"
    assert ended.outcome == "out_of_memory" or "No space left" in said


@lacks_none
async def test_what_left_its_parents_and_its_mark_is_ended_with_its_run_when_the_shim_is_killed(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    """Outside a sandbox a process can be anybody's child under any environment; it can't leave its control group."""
    agent = await make_agent(launcher="plain")
    await edge.want(job("env -i /usr/bin/setsid /bin/sleep 300 & echo $!; wait"))
    await edge.until(lambda: edge.log("run-1").strip().isdigit())
    pid = int(edge.log("run-1"))
    process = read_process(pid)
    assert process is not None
    os.kill(agent.shim("run-1")["pid"], 9)
    await edge.until_state("run-1", "ended")
    await edge.until(lambda: not is_alive(pid, process.start_ticks), 5)


@lacks_devices
async def test_a_device_that_no_run_was_given_is_closed_even_outside_a_sandbox(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    await make_agent(launcher="plain")
    wanted = job(
        "head -c1 /dev/kmsg >/dev/null && echo got-in; head -c1 /dev/urandom >/dev/null && echo harmless; echo end"
    )
    await edge.want(wanted)
    await edge.until_state(wanted.run, "ended")
    await edge.until(lambda: edge.log(wanted.run).endswith("end\n"))
    assert "got-in" not in edge.log(wanted.run).split() and "harmless" in edge.log(wanted.run)


@lacks_devices
def test_the_nodes_of_a_run_stay_open_to_it() -> None:
    """With a node that every machine has in the place of a GPU's."""
    groups = Cgroups()
    opened = {}
    for name, devices in (("with", ["/dev/kmsg"]), ("without", [])):
        made = groups.make(f"test-{os.getpid()}-{name}", CgroupLimits(devices=devices))
        done = subprocess.run(
            ["head", "-c1", "/dev/kmsg"],
            capture_output=True,
            preexec_fn=lambda: workload_entry.enter_workload({"cgroup_procs": made.procs}),  # noqa: B023
        )
        opened[name] = b"not permitted" not in done.stderr
        groups.remove(f"test-{os.getpid()}-{name}")
    assert opened == {"with": True, "without": False}


@lacks_none
async def test_the_groups_of_an_ended_run_are_gone(edge: FakeEdge, make_agent: MakeAgent) -> None:
    agent = await make_agent(launcher="bubblewrap")
    await edge.want(job("true", memory_mib=64, cpu_milli=500))
    await edge.until_state("run-1", "ended")
    import json

    mark = json.loads((agent.state / "runs/run-1/run.json").read_text())["mark"]
    await edge.until(lambda: not any(folder.exists() for folder in Cgroups()._folders(mark)))
    assert Cgroups().members(mark) == set() and MAX_PROCESSES_PER_RUN > 0
