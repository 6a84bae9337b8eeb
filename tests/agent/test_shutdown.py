"""Test that an agent ends on a signal even if a part of it hangs.

The end must be quick, because no lease is renewed until the next agent starts.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from agent.host import shutdown
from agent.host.shutdown import cancel_tasks
from tests.agent.conftest import ROOT, AgentProcess
from tests.agent.fake_edge import FakeEdge

SLOW_DISK = """
import time
from agent.runs import disk_pressure
from agent.cli import main
disk_pressure.measure_bytes = lambda runs: (open({mark!r}, "w").close(), time.sleep(600))
raise SystemExit(main())
"""
STUBBORN_LOOP = """
import asyncio
from agent.host import shutdown
from agent.cli import main
from agent.runs.disk_pressure import DiskPressure
async def watch(self):
    open({mark!r}, "w").close()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
shutdown.CANCEL_WAIT_SECONDS, DiskPressure.watch = 1.0, watch
raise SystemExit(main())
"""
BROKEN_LOOP = """
import asyncio, time
from agent.runs import disk_pressure
from agent.cli import main
from agent.monitoring import HostMonitor
disk_pressure.measure_bytes = lambda runs: time.sleep(90)
async def breaks(self):
    raise {fault}
HostMonitor._watch_events = breaks
raise SystemExit(main())
"""
SLOW_WRITES = """
import os, time
from agent.gpu import health_events
from agent.cli import main
write = health_events.write_json
def slowly(path, value):
    while not os.path.exists({gate!r}):
        time.sleep(0.05)
    time.sleep(1.0)
    write(path, value)
health_events.write_json = slowly
raise SystemExit(main())
"""

INTERRUPTED = """
import signal
from agent.cli import main
from agent.daemon import Agent
def interrupt(self):
    signal.raise_signal(signal.SIGINT)
    return ""
Agent._startup_summary = interrupt
raise SystemExit(main())
"""


def make_agent_process(edge: FakeEdge, tmp_path: Path, program: str) -> AgentProcess:
    return AgentProcess(edge, tmp_path / "state", "plain", program=[sys.executable, "-c", program])


@pytest.mark.parametrize(
    "program",
    [SLOW_DISK, STUBBORN_LOOP],
    ids=["a thread at a slow disk", "a loop that ignores its cancellation"],
)
async def test_an_agent_with_a_hanging_part_ends_in_seconds(
    edge: FakeEdge, tmp_path: Path, program: str
) -> None:
    mark = tmp_path / "the-part-hangs"
    agent = make_agent_process(edge, tmp_path, program.format(mark=str(mark)))
    try:
        await agent.start()
        await edge.until(mark.exists)
        async with asyncio.timeout(60):  # less than the time for which the part hangs
            assert await agent.end() == 0
    finally:
        agent.clean_up()


@pytest.mark.parametrize(
    "fault", ["RuntimeError('a loop failed')", "ValueError('a fault of the agent')", "asyncio.CancelledError"]
)
async def test_an_agent_whose_loop_failed_ends_despite_a_hanging_thread(
    edge: FakeEdge, tmp_path: Path, fault: str
) -> None:
    """Check that the agent ends, because the service manager restarts an agent only after its end."""
    agent = make_agent_process(edge, tmp_path, BROKEN_LOOP.format(fault=fault))
    try:
        await agent.start(joined=False)
        assert agent.process is not None
        async with asyncio.timeout(60):
            assert await agent.process.wait() == 1
    finally:
        agent.clean_up()


@pytest.mark.long
async def test_pending_writes_are_completed_before_the_agent_ends(edge: FakeEdge, tmp_path: Path) -> None:
    """End the agent while two hardware events wait for a slow disk."""
    gate = tmp_path / "disk-answers"
    agent = make_agent_process(edge, tmp_path, SLOW_WRITES.format(gate=str(gate)))
    try:
        await agent.start()
        for gpu in ("0", "1"):
            command = [
                sys.executable,
                "-m",
                "agent",
                "plant-xid",
                "--state",
                str(agent.state),
                "--gpu",
                gpu,
                "--code",
                "79",
            ]
            assert await (await asyncio.create_subprocess_exec(*command, cwd=ROOT)).wait() == 0
        await edge.until(lambda: len(edge.health) >= 2)
        assert not list((agent.state / "health").glob("*.json"))
        gate.touch()
        assert await agent.end() == 0
        assert len(list((agent.state / "health").glob("*.json"))) >= 2
    finally:
        agent.clean_up()


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-"])
async def test_an_agent_with_closed_output_streams_ends_normally(
    edge: FakeEdge, tmp_path: Path, streams: str
) -> None:
    agent = AgentProcess(
        edge,
        tmp_path / "state",
        "plain",
        program=["sh", "-c", f'exec "$0" -m agent "$@" {streams}', sys.executable],
    )
    try:
        await agent.start()
        assert await agent.end() == 0
    finally:
        agent.clean_up()


async def test_an_interrupt_just_before_signal_handling_ends_the_agent(
    edge: FakeEdge, tmp_path: Path
) -> None:
    agent = make_agent_process(edge, tmp_path, INTERRUPTED)
    await agent.start(joined=False)
    assert agent.process is not None
    async with asyncio.timeout(60):
        assert await agent.process.wait() == 128 + signal.SIGINT
    agent.clean_up()


@pytest.mark.long
async def test_an_agent_interrupted_during_its_start_can_be_ended(edge: FakeEdge, tmp_path: Path) -> None:
    """Send the interrupt at various times of the start.

    Python may lose an interrupt during an import. The agent then starts, and a second signal ends it.
    """
    for hundredths in range(0, 120, 12):
        agent = make_agent_process(edge, tmp_path, "from agent.cli import main; raise SystemExit(main())")
        await agent.start(joined=False)
        assert agent.process is not None
        await asyncio.sleep(0.3 + hundredths / 100)
        agent.process.send_signal(signal.SIGINT)
        await asyncio.wait([asyncio.create_task(agent.process.wait())], timeout=6)
        if agent.process.returncode is None:
            agent.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await agent.process.wait() in (0, 130, 1, -signal.SIGINT, -signal.SIGTERM), hundredths
    agent.clean_up()


async def test_tasks_that_do_not_end_are_logged_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    monkeypatch.setattr(shutdown, "CANCEL_WAIT_SECONDS", 0.1)
    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(asyncio.Event().wait())]
    await asyncio.sleep(0)
    await cancel_tasks(tasks)
    assert tasks[1].cancelled()
    assert "stubborn does not end and is abandoned" in caplog.text and "wait does not" not in caplog.text
    tasks[0].cancel()
    await cancel_tasks([])
