"""The operator's prolog and epilog, with real processes: what they are told, and what becomes of a run where one fails or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.host import processes
from agent.host.durable_files import read_json
from agent.runs.hooks import UnsafeHookError, checked_hook_program
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

MakeHooked = Callable[..., Awaitable[AgentProcess]]


class Told:
    """The file into which hooks of a test write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / "told")


@pytest.fixture
def hooked(make_agent: MakeAgent, tmp_path: Path, told: Told) -> MakeHooked:
    """Start an agent with hooks, given as lines of shell. $TOLD is where they write."""

    async def make(*, prolog: str = "", epilog: str = "", seconds: float = 20.0, **more: str) -> AgentProcess:
        options: list[str] = []
        for name, lines in (("prolog", prolog), ("epilog", epilog)):
            if lines:
                path = tmp_path / name
                path.write_text(f"#!/bin/bash\nTOLD={told.path}\n{lines}\n")
                path.chmod(0o700)
                options += [f"--{name}", str(path)]
        return await make_agent(*options, "--hook-seconds", str(seconds), **more)

    return make


SAY = 'echo "$GPUPOOL_HOOK $GPUPOOL_RUN $GPUPOOL_OUTCOME $GPUPOOL_EXIT_CODE" >> $TOLD'


async def test_hooks_run_before_and_after_the_work_and_know_what_it_is(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    agent = await hooked(
        prolog="env | sort >> $TOLD; echo - >> $TOLD", epilog="env | sort >> $TOLD; echo - >> $TOLD"
    )
    unit = agent.units[0]
    await edge.want(
        job(f"echo the work >> {told.path}; exit 3", units=[unit], attempt=2, cpu_milli=500, memory_mib=512)
    )
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("failed", 3)
    before, work, after = "\n".join(told.lines).split("-\n")[0], "the work", told.lines
    assert after.index(work) > len(before.splitlines())
    expected = {
        "GPUPOOL_RUN=run-1",
        "GPUPOOL_WORKLOAD=workload-1",
        "GPUPOOL_ATTEMPT=2",
        "GPUPOOL_KIND=job",
        "GPUPOOL_OWNER=ada",
        "GPUPOOL_TEAM=blue",
        f"GPUPOOL_GPUS={unit}",
        f"GPUPOOL_USER={os.getuid()}",
        "GPUPOOL_CPU_MILLI=500",
        "GPUPOOL_MEMORY_MIB=512",
        f"GPUPOOL_HOME={agent.state / 'homes' / 'ada'}",
    }
    prolog = set(before.splitlines())
    epilog = set(told.lines[told.lines.index(work) :])
    assert expected <= prolog and expected <= epilog
    assert (
        "GPUPOOL_HOOK=prolog" in prolog
        and {"GPUPOOL_HOOK=epilog", "GPUPOOL_OUTCOME=failed", "GPUPOOL_EXIT_CODE=3"} <= epilog
    )
    assert not any("credential" in line.lower() or "token" in line.lower() for line in prolog | epilog)


async def test_the_prolog_shows_as_the_step_of_a_run_that_has_not_begun(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    agent = await hooked(prolog="while [ ! -e $TOLD.go ]; do sleep 0.05; done")
    await edge.want(job("echo begun", units=agent.units[:1]))

    def says() -> bool:
        seen = edge.seen("run-1")
        return seen is not None and seen.state == "starting" and seen.step == "running the operator's prolog"

    await edge.until(says)
    assert edge.log("run-1") == ""
    Path(f"{told.path}.go").touch()
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "finished"


async def test_a_prolog_that_fails_keeps_the_work_from_starting_and_says_why(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    agent = await hooked(prolog="echo the scratch disk is not mounted >&2; exit 4", epilog=SAY)
    await edge.want(job(f"echo began >> {told.path}", units=agent.units[:1]))
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code, ended.started_at) == ("start_failed", None, None)
    assert ended.step == "the operator's prolog ended with 4: the scratch disk is not mounted"
    assert ended.prolog_failed, "which is the host's matter"
    assert told.lines == ["epilog run-1 start_failed "], (
        "what the prolog began is put in order, the work never ran"
    )
    await edge.want(job("echo begun", generation=2, units=agent.units[:1]))
    assert (await edge.until_state("run-2", "ended")).outcome == "start_failed", "the GPU was free again"


async def test_a_prolog_that_hangs_is_killed_with_all_it_started(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    agent = await hooked(prolog="setsid sleep 301 & sleep 302 & echo $! >> $TOLD; wait", seconds=1.0)
    await edge.want(job("echo begun", units=agent.units[:1]))
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "start_failed"
    assert ended.step == "the operator's prolog did not end in 1 seconds and was killed"
    assert processes.read_process(int(told.lines[0])) is None


async def test_a_prolog_that_never_stops_talking_is_killed_all_the_same(
    edge: FakeEdge, hooked: MakeHooked
) -> None:
    agent = await hooked(prolog="yes", seconds=1.0)
    await edge.want(job("echo begun", units=agent.units[:1]))
    assert "did not end in 1 seconds" in (await edge.until_state("run-1", "ended")).step


async def test_work_that_is_cancelled_while_its_prolog_runs_never_begins(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    agent = await hooked(prolog="touch $TOLD.begun; sleep 300", epilog=SAY)
    await edge.want(job(f"echo began >> {told.path}", units=agent.units[:1]))
    await edge.until(lambda: Path(f"{told.path}.begun").exists())
    await edge.change("run-1", verb="stop", code="cancelled")
    ended = await edge.until_state("run-1", "ended", 10)
    assert (ended.outcome, ended.started_at) == ("cancelled", None)
    assert told.lines == ["epilog run-1 cancelled "]


async def test_the_lease_counts_while_the_prolog_runs(edge: FakeEdge, hooked: MakeHooked, told: Told) -> None:
    edge.lease_seconds = 2.0
    agent = await hooked(prolog="touch $TOLD.begun; sleep 300", epilog=SAY)
    await edge.want(job("true", units=agent.units[:1]))
    await edge.until(lambda: Path(f"{told.path}.begun").exists())
    edge.silent = True
    await edge.until(lambda: told.lines, 15)
    assert told.lines == ["epilog run-1 lease_lost "]


async def test_a_gpu_is_not_given_on_before_the_epilog_is_over(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    agent = await hooked(epilog="while [ ! -e $TOLD.go ]; do sleep 0.05; done; " + SAY)
    units = agent.units[:1]
    await edge.want(job("true", units=units))

    def says() -> bool:
        seen = edge.seen("run-1")
        return seen is not None and seen.state == "stopping" and seen.step == "running the operator's epilog"

    await edge.until(says)
    work_ended = time.time()
    await edge.want(job(f"echo next >> {told.path}", generation=2, units=units))
    await edge.until(lambda: (seen := edge.seen("run-2")) is not None and seen.step.startswith("waiting"))
    assert told.lines == []
    Path(f"{told.path}.go").touch()
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "finished"
    assert ended.ended_at is not None and ended.ended_at < work_ended + 0.5, (
        "its owner does not pay for the epilog"
    )
    await edge.until_state("run-2", "ended")
    assert told.lines[:2] == ["epilog run-1 finished 0", "next"]


async def test_an_epilog_that_fails_changes_no_outcome_and_is_told(
    edge: FakeEdge, hooked: MakeHooked
) -> None:
    agent = await hooked(epilog="echo the disk can not be wiped; exit 1")
    await edge.want(job("true", units=agent.units[:1]))
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("finished", 0)
    assert ended.step == "the operator's epilog ended with 1: the disk can not be wiped"


async def test_an_epilog_that_hangs_is_killed_and_the_run_ends(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    agent = await hooked(epilog="echo $$ >> $TOLD; sleep 300", seconds=1.0)
    await edge.want(job("exit 2", units=agent.units[:1]))
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("failed", 2)
    assert ended.step == "the operator's epilog did not end in 1 seconds and was killed"
    assert processes.read_process(int(told.lines[0])) is None


async def test_the_epilog_runs_once_after_a_job_that_had_to_be_killed(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    agent = await hooked(epilog=SAY)
    await edge.want(
        job("trap '' TERM; echo begun; while :; do sleep 1; done", units=agent.units[:1], grace_seconds=0.5)
    )
    await edge.until(lambda: "begun" in edge.log("run-1"))
    await edge.change("run-1", verb="stop", code="cancelled", grace_seconds=0.5)
    assert (await edge.until_state("run-1", "ended")).outcome == "killed_at_grace"
    assert told.lines == ["epilog run-1 killed_at_grace 137"]


async def test_the_epilog_runs_once_although_the_agent_is_away_when_the_work_ends(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    agent = await hooked(epilog=SAY)
    await edge.want(
        job(f"echo begun; while [ ! -e {told.path}.go ]; do sleep 0.05; done", units=agent.units[:1])
    )
    await edge.until(lambda: "begun" in edge.log("run-1"))
    await agent.kill()
    agent.more = []  # what an agent of today is told changes nothing for what runs
    Path(f"{told.path}.go").touch()
    while not told.lines:
        await asyncio.sleep(0.05)
    await agent.start()
    assert (await edge.until_state("run-1", "ended")).outcome == "finished"
    await asyncio.sleep(0.5)
    assert told.lines == ["epilog run-1 finished 0"]


@pytest.mark.parametrize("agent_too", [False, True])
async def test_the_epilog_runs_once_after_a_job_whose_shim_was_killed(
    edge: FakeEdge, hooked: MakeHooked, told: Told, agent_too: bool
) -> None:
    agent = await hooked(epilog="sleep 0.5; " + SAY)
    await edge.want(job("echo begun; sleep 300", units=agent.units[:1]))
    await edge.until(lambda: "begun" in edge.log("run-1"))
    if agent_too:
        await agent.kill()
    os.kill(agent.shim("run-1")["pid"], signal.SIGKILL)
    if agent_too:
        await agent.start()
        await edge.until(lambda: (agent.state / "runs" / "run-1" / "epilog.json").exists())
        await agent.kill()  # while the epilog runs
        await agent.start()
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "host_lost"
    assert told.lines == ["epilog run-1 host_lost "], "before the end is told, and once"
    await asyncio.sleep(0.7)
    assert len(told.lines) == 1


async def test_a_shim_that_is_killed_in_the_epilog_loses_neither_the_outcome_nor_the_deadline(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    agent = await hooked(epilog="echo $$ >> $TOLD; sleep 300", seconds=2.0)
    await edge.want(job("exit 5", units=agent.units[:1]))
    await edge.until(lambda: told.lines)
    os.kill(agent.shim("run-1")["pid"], signal.SIGKILL)
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("failed", 5)
    assert len(told.lines) == 1 and processes.read_process(int(told.lines[0])) is None


async def test_a_prolog_whose_shim_is_killed_is_ended_before_the_epilog(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    still_there = (
        "readlink /proc/$(head -1 $TOLD)/exe >> $TOLD; "  # nothing of one that is dead, reaped or not
    )
    agent = await hooked(prolog="echo $$ >> $TOLD; sleep 300", epilog=still_there + SAY)
    await edge.want(job("true", units=agent.units[:1]))
    await edge.until(lambda: told.lines)
    os.kill(agent.shim("run-1")["pid"], signal.SIGKILL)
    assert (await edge.until_state("run-1", "ended")).outcome == "host_lost"
    assert told.lines[1:] == ["epilog run-1 host_lost "]


async def test_what_never_was_started_has_no_hooks(edge: FakeEdge, hooked: MakeHooked, told: Told) -> None:
    await hooked(prolog=SAY, epilog=SAY)
    await edge.want(job("true", units=["GPU-of-another-host"]))
    assert (await edge.until_state("run-1", "ended")).outcome == "start_failed"
    await asyncio.sleep(0.3)
    assert told.lines == []


async def test_hooks_have_the_agents_user_and_the_host_also_where_the_work_has_a_sandbox(
    edge: FakeEdge, hooked: MakeHooked, told: Told
) -> None:
    agent = await hooked(
        prolog="id -u >> $TOLD; ls $GPUPOOL_HOME/.. >/dev/null && echo host >> $TOLD", launcher="auto"
    )
    await edge.want(job("true", units=agent.units[:1], team="blue", team_id="7", team_user=70001))
    assert (await edge.until_state("run-1", "ended")).outcome == "finished"
    assert told.lines == [str(os.getuid()), "host"]
    assert (read_json(agent.state / "runs" / "run-1" / "exit.json") or {})["error"] == ""


def test_a_hook_has_to_be_a_program_that_nobody_else_can_change(tmp_path: Path) -> None:
    program = tmp_path / "hook"
    for mode, words in (
        (0o600, "not a program"),
        (0o720, "can be changed by others"),
        (0o702, "can be changed by others"),
    ):
        program.write_text("#!/bin/sh\n")
        program.chmod(mode)
        with pytest.raises(UnsafeHookError, match=words):
            checked_hook_program(str(program))
    program.chmod(0o755)
    assert checked_hook_program(str(program)) == program
    for value, words in (
        ("hook", "absolute"),
        ("", "absolute"),
        (str(tmp_path), "not a program"),
        (f"{program}x", "No such"),
    ):
        with pytest.raises(UnsafeHookError, match=words):
            checked_hook_program(value)


def test_a_hook_is_not_in_a_folder_from_which_others_can_take_it(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
        (folder / "hook").write_text("#!/bin/sh\n")
        (folder / "hook").chmod(0o755)
    theirs.chmod(0o777)
    (theirs / "link").symlink_to(ours / "hook")
    (ours / "link").symlink_to(theirs / "hook")
    for path in (theirs / "hook", theirs / "link", ours / "link"):
        with pytest.raises(UnsafeHookError, match="can be replaced by others: '.*theirs'"):
            checked_hook_program(str(path))
    assert checked_hook_program(str(ours / "hook")) == ours / "hook"
