"""Test the guard process, which is the parent of a shim and holds the GPU locks of its workload.

The shim is the process that starts and watches a workload. The GPUs stay locked until the workload's last
process has ended, even if the shim was killed. The workload's processes do not inherit the locks.
"""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from agent.host import gpu_locks, processes
from agent.host.durable_files import read_json
from agent.host.gpu_locks import SlotClaim, SlotsLocked
from agent.isolation.cgroups import Cgroups
from agent.runs.local_run import LocalRun
from agent.runs.orphaned_runs import OrphanedRuns
from tests.agent.command_lines import command_line
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

# A child process that closes all files, removes the run's mark and leaves its session. Only its ancestors
# identify it.
HIDDEN_CHILD = (
    "python3 -S -c 'import os; os.fork() and os._exit(0); os.setsid(); os.closerange(3, 256); "
    'os.execve("/bin/sleep", ["sleep", "304"], {})\'; sleep 300'
)


def is_free(agent: AgentProcess) -> bool:
    try:
        gpu_locks.lock_slots(
            agent.state / "locks", [SlotClaim(agent.edge.observed[0].inventory.gpus[0].uuid, 0, 840)]
        ).close()
    except SlotsLocked:
        return False
    return True


async def start_hidden_child(edge: FakeEdge, agent: AgentProcess) -> processes.Process:
    """Start a run on the first GPU and return its hidden child."""
    await edge.want(job(HIDDEN_CHILD, units=[agent.units[0]]))
    await edge.until_state("run-1", "running")
    found: list[processes.Process] = []

    def is_present() -> bool:
        below = processes.descendants(processes.scan(), agent.shim("run-1")["pid"])
        found[:] = [each for each in below if command_line(each.pid) == [b"sleep", b"304"]]
        return bool(found)

    await edge.until(is_present)
    return found[0]


def end(process: processes.Process) -> None:
    if processes.is_alive(process.pid, process.start_ticks):
        os.kill(process.pid, signal.SIGKILL)


async def test_a_gpu_stays_locked_until_the_last_process_of_a_killed_shim_ends(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    last = await start_hidden_child(edge, agent)
    tree = processes.descendants(processes.scan(), agent.shim("run-1")["pid"])
    await agent.kill()
    try:
        os.kill(agent.shim("run-1")["pid"], signal.SIGKILL)
        for each in tree:
            if each.pid != last.pid:
                end(each)
        await edge.until(
            lambda: not any(processes.is_alive(e.pid, e.start_ticks) for e in tree if e.pid != last.pid)
        )
        assert not is_free(agent)
    finally:
        end(last)
    await edge.until(lambda: is_free(agent))


class NoCgroups(Cgroups):
    """The cgroups of a host on which the agent can't create cgroups."""

    def members(self, name: str) -> set[int]:
        return set()


async def test_a_hidden_process_of_a_killed_shim_is_ended(edge: FakeEdge, agent: AgentProcess) -> None:
    last = await start_hidden_child(edge, agent)
    folder = agent.state / "runs" / "run-1"
    run = LocalRun(folder, read_json(folder / "run.json"), shim=read_json(folder / "shim.json"))
    orphans = OrphanedRuns(agent.state / "tools", NoCgroups())
    await agent.kill()
    try:
        os.kill(run.shim["pid"], signal.SIGKILL)
        await edge.until(lambda: orphans.end(run) is not None)
        assert not processes.is_alive(last.pid, last.start_ticks)
    finally:
        end(last)
    await edge.until(lambda: is_free(agent))


async def test_a_guard_ends_with_its_shim_and_a_shim_continues_without_guard(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    for generation in (1, 2):
        await edge.want(job("sleep 300", generation=generation, units=[agent.units[generation - 1]]))
        await edge.until_state(f"run-{generation}", "running")
    first, second = (
        read_json(agent.state / "runs" / name / "shim.json")["guard"] for name in ("run-1", "run-2")
    )
    os.kill(second["pid"], signal.SIGKILL)
    for generation in (1, 2):
        await edge.change(f"run-{generation}", verb="stop", code="cancelled")
        assert (await edge.until_state(f"run-{generation}", "ended")).outcome == "cancelled"
    await edge.until(lambda: not processes.is_alive(first["pid"], first["start_ticks"]))
    assert is_free(agent)


@pytest.mark.long
async def test_a_plain_run_that_locks_a_foreign_gpu_is_stopped_and_named(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    """Let a run lock the lock file of a foreign GPU.

    The run can do this, because the user under which it runs owns the lock file.
    """
    await edge.want(job("true", generation=1, units=[agent.units[0]]))
    await edge.until_state("run-1", "ended")
    (lock,) = (agent.state / "locks").iterdir()
    await edge.want(
        job(f"exec 9<{lock}; flock -x 9 && echo taken; sleep 300", generation=2, units=[agent.units[1]])
    )
    await edge.until(lambda: edge.log("run-2") == "taken\n")
    await edge.want(job("true", generation=3, units=[agent.units[0]]))
    assert (await edge.until_state("run-3", "ended")).outcome == "finished"
    ended = await edge.until_state("run-2", "ended")
    assert ended.outcome == "cancelled" and "locked slots of GPU-" in ended.step


async def test_another_holder_of_a_gpu_lock_is_named_and_left_alone(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await edge.want(job("true", generation=1, units=[agent.units[0]]))
    await edge.until_state("run-1", "ended")
    (lock,) = (agent.state / "locks").iterdir()
    other = subprocess.Popen(["flock", "-x", str(lock), "sleep", "300"])
    try:
        await edge.until(lambda: not is_free(agent))
        await edge.want(job("true", generation=2, units=[agent.units[0]]))
        await edge.until(
            lambda: (
                (seen := edge.seen("run-2")) and f"process {other.pid} (flock) holds its lock" in seen.step
            )
        )
        assert other.poll() is None
    finally:
        for each in [*processes.descendants(processes.scan(), other.pid), processes.read_process(other.pid)]:
            if each is not None:
                end(each)
        other.wait()
    assert (await edge.until_state("run-2", "ended")).outcome == "finished"


async def test_the_holder_of_a_slice_is_named_and_not_its_neighbour(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    _, first, second = agent.units
    await edge.want(job("sleep 300", generation=1, units=[first]))
    await edge.want(job("true", generation=2, units=[second]))
    await edge.until_state("run-1", "running")
    await edge.until_state("run-2", "ended")
    (lock,) = (path for path in (agent.state / "locks").iterdir() if path.name.endswith(".360-720"))
    other = subprocess.Popen(["flock", "-x", str(lock), "sleep", "300"])
    try:
        await edge.until(lambda: bool(processes.descendants(processes.scan(), other.pid)))
        await edge.want(job("true", generation=3, units=[second]))
        await edge.until(lambda: (seen := edge.seen("run-3")) and "holds its lock" in seen.step)
        waiting = edge.seen("run-3")
        assert waiting is not None and f"process {other.pid} (flock) holds its lock" in waiting.step
    finally:
        for each in [*processes.descendants(processes.scan(), other.pid), processes.read_process(other.pid)]:
            if each is not None:
                end(each)
        other.wait()
    assert (await edge.until_state("run-3", "ended")).outcome == "finished"
    assert (await edge.until_state("run-1", "running")).outcome == ""


@pytest.mark.sandbox
async def test_a_sandbox_of_a_killed_shim_and_agent_frees_its_gpu_at_its_end(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    agent = await make_agent(launcher="bubblewrap")
    await edge.want(job("setsid sleep 300 & sleep 300", units=[agent.units[0]]))
    await edge.until_state("run-1", "running")
    shim = agent.shim("run-1")
    await edge.until(lambda: len(processes.descendants(processes.scan(), shim["pid"])) >= 4)
    tree = processes.descendants(processes.scan(), shim["pid"])
    await agent.kill()
    assert not is_free(agent)
    os.kill(shim["pid"], signal.SIGKILL)
    await edge.until(lambda: is_free(agent))
    assert not any(processes.is_alive(each.pid, each.start_ticks) for each in tree)
