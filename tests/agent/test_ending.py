"""An agent that is told to end ends, whatever of it hangs: until the next one is there, nobody renews leases."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from agent import ending
from agent.ending import end_tasks
from tests.agent.conftest import AgentProcess
from tests.agent.fake_edge import FakeEdge

SLOW_DISK = """
import time
from agent import scratch
from agent.commands import main
scratch.measure = lambda runs: time.sleep(90)
raise SystemExit(main())
"""
STUBBORN_LOOP = """
import asyncio
from agent import ending
from agent.commands import main
from agent.scratch import Scratch
async def watch(self):
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
ending.END_SECONDS, Scratch.watch = 1.0, watch
raise SystemExit(main())
"""
BROKEN_LOOP = """
import time
from agent import scratch
from agent.commands import main
from agent.watching import Watch
scratch.measure = lambda runs: time.sleep(90)
async def breaks(self):
    raise RuntimeError("a loop of ours broke")
Watch._watch_events = breaks
raise SystemExit(main())
"""


def an_agent(edge: FakeEdge, tmp_path: Path, program: str) -> AgentProcess:
    return AgentProcess(edge, tmp_path / "state", "plain", program=[sys.executable, "-c", program])


@pytest.mark.parametrize("program", [SLOW_DISK, STUBBORN_LOOP], ids=["a thread at a slow disk", "a loop that swallows its end"])
async def test_an_agent_ends_in_seconds_though_something_of_it_hangs(edge: FakeEdge, tmp_path: Path, program: str) -> None:
    agent = an_agent(edge, tmp_path, program)
    try:
        await agent.start()
        await asyncio.sleep(1)
        began = time.monotonic()
        assert await agent.end() == 0
        assert time.monotonic() - began < 15, "systemd ends it after 30 s, the hard way"
    finally:
        agent.clean_up()


async def test_an_agent_whose_loop_broke_ends_with_its_fault_though_a_thread_hangs(edge: FakeEdge, tmp_path: Path) -> None:
    """Whoever keeps it starts it again only once it has ended."""
    agent = an_agent(edge, tmp_path, BROKEN_LOOP)
    try:
        await agent.start(joined=False)
        assert agent.process is not None
        async with asyncio.timeout(30):
            assert await agent.process.wait() == 1
    finally:
        agent.clean_up()


async def test_what_does_not_end_is_told_by_name(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    monkeypatch.setattr(ending, "END_SECONDS", 0.1)
    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(asyncio.sleep(60))]
    await asyncio.sleep(0)
    await end_tasks(tasks)
    assert tasks[1].cancelled()
    assert "stubborn does not end and is left behind" in caplog.text and "sleep does not" not in caplog.text
    tasks[0].cancel()
    await end_tasks([])
