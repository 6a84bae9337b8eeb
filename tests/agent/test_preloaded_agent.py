"""Test the process that forks agents for the tests. A forked agent must behave like a new process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from agent.cli_arguments import EXIT_USAGE
from tests.agent.conftest import AgentProcess, MakeAgent
from tests.agent.fake_edge import FakeEdge
from tests.agent.preloaded_agent import PreloadedAgent, has_its_first_environment, start_preloaded_agent


async def test_an_agent_is_forked_and_its_end_is_reported(agent: AgentProcess) -> None:
    assert isinstance(agent.process, PreloadedAgent)
    assert agent.process.returncode is None
    waiting = asyncio.create_task(agent.process.wait())
    assert await agent.end() == 0
    assert await waiting == 0


async def test_the_signal_that_ended_an_agent_is_reported(agent: AgentProcess) -> None:
    assert agent.process is not None
    await agent.kill()
    assert agent.process.returncode == -signal.SIGKILL
    # No signal is sent to an agent that has ended, because its pid may belong to another process.
    agent.process.kill()


async def test_an_agent_has_the_callers_output_and_exit_status(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await start_preloaded_agent(["run", "--state", str(tmp_path / "state")]).wait() == EXIT_USAGE
    assert "--join-token-file: needed for the first start" in capfd.readouterr().err


async def test_an_agent_holds_no_file_of_the_process_that_forked_it(agent: AgentProcess) -> None:
    assert agent.process is not None
    folder = Path(f"/proc/{agent.process.pid}/fd")
    files = {name: os.readlink(folder / name) for name in os.listdir(folder) if int(name) > 2}
    sockets = [place for place in files.values() if place.startswith("socket:")]
    listed = Path(f"/proc/{agent.process.pid}/net/unix").read_text().split("\n")
    unnamed_seqpacket = {f"socket:[{line.split()[6]}]" for line in listed[1:-1] if line.split()[4] == "0005"}
    assert not unnamed_seqpacket & set(sockets), files


async def test_a_changed_environment_starts_a_new_process(
    edge: FakeEdge, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHANGED_BY_THE_TEST", "yes")
    assert not has_its_first_environment()
    agent = await make_agent()
    assert isinstance(agent.process, asyncio.subprocess.Process)
    assert b"CHANGED_BY_THE_TEST=yes" in Path(f"/proc/{agent.process.pid}/environ").read_bytes()


@pytest.mark.parametrize("new_process", [False, True])
async def test_the_steps_of_an_agent_are_counted_and_its_constants_are_replaced(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, new_process: bool
) -> None:
    if new_process:
        monkeypatch.setenv("CHANGED_BY_THE_TEST", "yes")
    agent = await make_agent(constants={"agent.reconciler.SHIM_POLL_SECONDS": 0.02})
    assert isinstance(agent.process, PreloadedAgent) is not new_process
    first = agent.count("shim_poll")
    await agent.after_steps("shim_poll", 3)
    assert agent.count("shim_poll") >= first + 4
    await agent.kill()
    before = agent.count("shim_poll")
    await agent.start()
    await agent.edge.until(lambda: agent.count("shim_poll") > before)
