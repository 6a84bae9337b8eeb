"""Test when an agent reports and reconnects."""

from __future__ import annotations

import asyncio
import time

from tests.agent.conftest import AgentProcess, MakeAgent
from tests.agent.fake_edge import FakeEdge


async def test_unanswered_reports_slow_down_but_still_request_leases(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.silent = True
    await asyncio.sleep(edge.poll_seconds)
    reports, began = len(edge.observed), time.monotonic()
    await asyncio.sleep(10 * edge.poll_seconds)
    polls = (time.monotonic() - began) / edge.poll_seconds
    later = len(edge.observed) - reports
    assert 1 <= later <= polls / 2 + 1
    edge.silent = False
    await edge.push()  # this frame answers the last report
    await edge.until(lambda: len(edge.observed) > reports + later + 3)


async def test_a_damaged_hardware_event_file_does_not_prevent_the_connection(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    agent = await make_agent()
    await agent.kill()
    for name, text in (("damaged", "{"), ("of-a-newer-agent", '{"event": "x", "ts": 9e9}')):
        (agent.state / "health" / f"{name}.json").write_text(text)
    await agent.start()
    assert not list((agent.state / "health").glob("*.json"))


async def test_a_host_with_many_open_streams_can_still_reconnect(edge: FakeEdge, agent: AgentProcess) -> None:
    edge.streams_wanted = 150
    await edge.push()
    await edge.until(lambda: len(edge.idle_streams) == 150)
    reports = len(edge.observed)
    for socket in list(edge.sync_sockets):
        await socket.close()
    await edge.until(lambda: len(edge.observed) > reports)


async def test_an_agent_reconnects_at_once_after_an_answered_report(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.poll_seconds = 5.0  # a long interval, so that the lease does not shorten the pauses
    await edge.push()
    began = time.monotonic()
    for _ in range(10):
        await asyncio.sleep(0.2)  # time for the answer to arrive
        reports = len(edge.observed)
        for socket in list(edge.sync_sockets):
            await socket.close()
        await edge.until(lambda reports=reports: len(edge.observed) > reports)  # type: ignore[misc]
    assert time.monotonic() - began < 18, "pauses that grow to 8 s would take about 25 s"
