"""Test the operator's prolog and epilog with real processes.

The tests cover the environment of the hooks, and the outcome of a run if a hook fails or hangs.
"""

from __future__ import annotations

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

StartWithHooks = Callable[..., Awaitable[AgentProcess]]


class HookOutput:
    """The output file of the hooks of a test."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


@pytest.fixture
def hook_output(tmp_path: Path) -> HookOutput:
    return HookOutput(tmp_path / "hook-output")


@pytest.fixture
def start_with_hooks(make_agent: MakeAgent, tmp_path: Path, hook_output: HookOutput) -> StartWithHooks:
    """Return a function that starts an agent with hooks given as shell lines.

    Hooks write to the file $HOOK_OUTPUT.
    """

    async def make(*, prolog: str = "", epilog: str = "", seconds: float = 20.0, **more: str) -> AgentProcess:
        options: list[str] = []
        for name, lines in (("prolog", prolog), ("epilog", epilog)):
            if lines:
                path = tmp_path / name
                path.write_text(f"#!/bin/bash\nHOOK_OUTPUT={hook_output.path}\n{lines}\n")
                path.chmod(0o700)
                options += [f"--{name}", str(path)]
        return await make_agent(*options, "--hook-seconds", str(seconds), **more)

    return make


WRITE_OUTCOME = 'echo "$GPUPOOL_HOOK $GPUPOOL_RUN $GPUPOOL_OUTCOME $GPUPOOL_EXIT_CODE" >> $HOOK_OUTPUT'


async def test_hooks_run_before_and_after_a_job_with_its_environment(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(
        prolog="env | sort >> $HOOK_OUTPUT; echo - >> $HOOK_OUTPUT",
        epilog="env | sort >> $HOOK_OUTPUT; echo - >> $HOOK_OUTPUT",
    )
    unit = agent.units[0]
    await edge.want(
        job(
            f"echo the work >> {hook_output.path}; exit 3",
            units=[unit],
            attempt=2,
            cpu_milli=500,
            memory_mib=512,
        )
    )
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("failed", 3)
    before, work, after = "\n".join(hook_output.lines).split("-\n")[0], "the work", hook_output.lines
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
    epilog = set(hook_output.lines[hook_output.lines.index(work) :])
    assert expected <= prolog and expected <= epilog
    assert (
        "GPUPOOL_HOOK=prolog" in prolog
        and {"GPUPOOL_HOOK=epilog", "GPUPOOL_OUTCOME=failed", "GPUPOOL_EXIT_CODE=3"} <= epilog
    )
    assert not any("credential" in line.lower() or "token" in line.lower() for line in prolog | epilog)


async def test_a_running_prolog_is_reported_as_the_step_of_a_starting_run(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(prolog="while [ ! -e $HOOK_OUTPUT.go ]; do sleep 0.05; done")
    await edge.want(job("echo begun", units=agent.units[:1]))

    def is_in_step() -> bool:
        seen = edge.seen("run-1")
        return seen is not None and seen.state == "starting" and seen.step == "running the operator's prolog"

    await edge.until(is_in_step)
    assert edge.log("run-1") == ""
    Path(f"{hook_output.path}.go").touch()
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "finished"


async def test_a_failed_prolog_prevents_the_start_and_reports_the_reason(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(
        prolog="echo the scratch disk is not mounted >&2; exit 4", epilog=WRITE_OUTCOME
    )
    await edge.want(job(f"echo began >> {hook_output.path}", units=agent.units[:1]))
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code, ended.started_at) == ("start_failed", None, None)
    assert ended.step == "the operator's prolog ended with 4: the scratch disk is not mounted"
    assert ended.prolog_failed, "prolog_failed marks a fault of the host"
    assert hook_output.lines == ["epilog run-1 start_failed "], (
        "the epilog cleans up after the prolog; the job never ran"
    )
    await edge.want(job("echo begun", generation=2, units=agent.units[:1]))
    assert (await edge.until_state("run-2", "ended")).outcome == "start_failed", (
        "the GPU is free again, so the prolog runs and fails again"
    )


async def test_a_hanging_prolog_is_killed_with_its_children(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(
        prolog="setsid sleep 301 & sleep 302 & echo $! >> $HOOK_OUTPUT; wait", seconds=1.0
    )
    await edge.want(job("echo begun", units=agent.units[:1]))
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "start_failed"
    assert ended.step == "the operator's prolog did not end in 1 seconds and was killed"
    assert processes.read_process(int(hook_output.lines[0])) is None


async def test_a_prolog_with_endless_output_is_killed_at_its_deadline(
    edge: FakeEdge, start_with_hooks: StartWithHooks
) -> None:
    agent = await start_with_hooks(prolog="yes", seconds=1.0)
    await edge.want(job("echo begun", units=agent.units[:1]))
    assert "did not end in 1 seconds" in (await edge.until_state("run-1", "ended")).step


async def test_a_job_cancelled_during_its_prolog_never_starts(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(prolog="touch $HOOK_OUTPUT.begun; sleep 300", epilog=WRITE_OUTCOME)
    await edge.want(job(f"echo began >> {hook_output.path}", units=agent.units[:1]))
    await edge.until(lambda: Path(f"{hook_output.path}.begun").exists())
    await edge.change("run-1", verb="stop", code="cancelled")
    ended = await edge.until_state("run-1", "ended", 10)
    assert (ended.outcome, ended.started_at) == ("cancelled", None)
    assert hook_output.lines == ["epilog run-1 cancelled "]


async def test_a_run_whose_lease_expires_during_its_prolog_ends_as_lease_lost(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    edge.lease_seconds = 2.0
    agent = await start_with_hooks(prolog="touch $HOOK_OUTPUT.begun; sleep 300", epilog=WRITE_OUTCOME)
    await edge.want(job("true", units=agent.units[:1]))
    await edge.until(lambda: Path(f"{hook_output.path}.begun").exists())
    edge.silent = True
    await edge.until(lambda: hook_output.lines, 15)
    assert hook_output.lines == ["epilog run-1 lease_lost "]


async def test_a_gpu_is_reused_only_after_the_epilog(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(
        epilog="while [ ! -e $HOOK_OUTPUT.go ]; do sleep 0.05; done; " + WRITE_OUTCOME
    )
    units = agent.units[:1]
    await edge.want(job("true", units=units))

    def is_in_step() -> bool:
        seen = edge.seen("run-1")
        return seen is not None and seen.state == "stopping" and seen.step == "running the operator's epilog"

    await edge.until(is_in_step)
    work_ended = time.time()
    await edge.want(job(f"echo next >> {hook_output.path}", generation=2, units=units))
    await edge.until(lambda: (seen := edge.seen("run-2")) is not None and seen.step.startswith("waiting"))
    assert hook_output.lines == []
    Path(f"{hook_output.path}.go").touch()
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "finished"
    assert ended.ended_at is not None and ended.ended_at < work_ended + 0.5, (
        "ended_at excludes the epilog, so the owner is not charged for it"
    )
    await edge.until_state("run-2", "ended")
    assert hook_output.lines[:2] == ["epilog run-1 finished 0", "next"]


async def test_a_failed_epilog_is_reported_but_keeps_the_outcome(
    edge: FakeEdge, start_with_hooks: StartWithHooks
) -> None:
    agent = await start_with_hooks(epilog="echo the disk can not be wiped; exit 1")
    await edge.want(job("true", units=agent.units[:1]))
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("finished", 0)
    assert ended.step == "the operator's epilog ended with 1: the disk can not be wiped"


async def test_a_hanging_epilog_is_killed_and_the_run_ends(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(epilog="echo $$ >> $HOOK_OUTPUT; sleep 300", seconds=1.0)
    await edge.want(job("exit 2", units=agent.units[:1]))
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("failed", 2)
    assert ended.step == "the operator's epilog did not end in 1 seconds and was killed"
    assert processes.read_process(int(hook_output.lines[0])) is None


async def test_the_epilog_runs_once_after_a_killed_job(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(epilog=WRITE_OUTCOME)
    await edge.want(
        job("trap '' TERM; echo begun; while :; do sleep 1; done", units=agent.units[:1], grace_seconds=0.5)
    )
    await edge.until(lambda: "begun" in edge.log("run-1"))
    await edge.change("run-1", verb="stop", code="cancelled", grace_seconds=0.5)
    assert (await edge.until_state("run-1", "ended")).outcome == "killed_at_grace"
    assert hook_output.lines == ["epilog run-1 killed_at_grace 137"]


async def test_the_epilog_runs_once_if_the_job_ends_without_an_agent(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(epilog=WRITE_OUTCOME)
    await edge.want(
        job(f"echo begun; while [ ! -e {hook_output.path}.go ]; do sleep 0.05; done", units=agent.units[:1])
    )
    await edge.until(lambda: "begun" in edge.log("run-1"))
    await agent.kill()
    agent.more = []  # options of a restarted agent do not change running jobs
    Path(f"{hook_output.path}.go").touch()
    await edge.until(lambda: hook_output.lines)
    await agent.start()
    assert (await edge.until_state("run-1", "ended")).outcome == "finished"
    await agent.after_steps("shim_poll", 3)
    assert hook_output.lines == ["epilog run-1 finished 0"]


@pytest.mark.parametrize("agent_too", [False, True])
async def test_the_epilog_runs_once_after_a_killed_shim(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput, agent_too: bool
) -> None:
    agent = await start_with_hooks(epilog="sleep 0.5; " + WRITE_OUTCOME)
    await edge.want(job("echo begun; sleep 300", units=agent.units[:1]))
    await edge.until(lambda: "begun" in edge.log("run-1"))
    if agent_too:
        await agent.kill()
    os.kill(agent.shim("run-1")["pid"], signal.SIGKILL)
    if agent_too:
        await agent.start()
        await edge.until(lambda: (agent.state / "runs" / "run-1" / "epilog.json").exists())
        await agent.kill()  # the agent is killed while the epilog runs
        await agent.start()
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "host_lost"
    assert hook_output.lines == ["epilog run-1 host_lost "], (
        "the epilog runs once, before the end is reported"
    )
    await agent.after_steps("shim_poll", 5)
    assert len(hook_output.lines) == 1


async def test_a_shim_killed_during_the_epilog_keeps_outcome_and_deadline(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(epilog="echo $$ >> $HOOK_OUTPUT; sleep 300", seconds=2.0)
    await edge.want(job("exit 5", units=agent.units[:1]))
    await edge.until(lambda: hook_output.lines)
    os.kill(agent.shim("run-1")["pid"], signal.SIGKILL)
    ended = await edge.until_state("run-1", "ended")
    assert (ended.outcome, ended.exit_code) == ("failed", 5)
    assert len(hook_output.lines) == 1 and processes.read_process(int(hook_output.lines[0])) is None


async def test_a_prolog_of_a_killed_shim_is_ended_before_the_epilog(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    # readlink prints nothing for a process that has ended, even if it was not reaped.
    still_there = "readlink /proc/$(head -1 $HOOK_OUTPUT)/exe >> $HOOK_OUTPUT; "
    agent = await start_with_hooks(
        prolog="echo $$ >> $HOOK_OUTPUT; sleep 300", epilog=still_there + WRITE_OUTCOME
    )
    await edge.want(job("true", units=agent.units[:1]))
    await edge.until(lambda: hook_output.lines)
    os.kill(agent.shim("run-1")["pid"], signal.SIGKILL)
    assert (await edge.until_state("run-1", "ended")).outcome == "host_lost"
    assert hook_output.lines[1:] == ["epilog run-1 host_lost "]


async def test_a_rejected_run_runs_no_hooks(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(prolog=WRITE_OUTCOME, epilog=WRITE_OUTCOME)
    await edge.want(job("true", units=["GPU-of-another-host"]))
    assert (await edge.until_state("run-1", "ended")).outcome == "start_failed"
    await agent.after_steps("shim_poll", 3)
    assert hook_output.lines == []


async def test_hooks_of_sandboxed_jobs_run_on_the_host_as_the_agents_user(
    edge: FakeEdge, start_with_hooks: StartWithHooks, hook_output: HookOutput
) -> None:
    agent = await start_with_hooks(
        prolog="id -u >> $HOOK_OUTPUT; ls $GPUPOOL_HOME/.. >/dev/null && echo host >> $HOOK_OUTPUT",
        launcher="auto",
    )
    await edge.want(job("true", units=agent.units[:1], team="blue", team_id="7", team_user=70001))
    assert (await edge.until_state("run-1", "ended")).outcome == "finished"
    assert hook_output.lines == [str(os.getuid()), "host"]
    assert (read_json(agent.state / "runs" / "run-1" / "exit.json") or {})["error"] == ""


def test_a_hook_must_be_a_program_that_others_cannot_change(tmp_path: Path) -> None:
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


def test_a_hook_must_not_be_in_a_folder_that_others_can_write(tmp_path: Path) -> None:
    shared, private = tmp_path / "shared", tmp_path / "private"
    for folder in (shared, private):
        folder.mkdir()
        (folder / "hook").write_text("#!/bin/sh\n")
        (folder / "hook").chmod(0o755)
    shared.chmod(0o777)
    (shared / "link").symlink_to(private / "hook")
    (private / "link").symlink_to(shared / "hook")
    for path in (shared / "hook", shared / "link", private / "link"):
        with pytest.raises(UnsafeHookError, match="can be replaced by others: they own '.*shared'"):
            checked_hook_program(str(path))
    assert checked_hook_program(str(private / "hook")) == private / "hook"
