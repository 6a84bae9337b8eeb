"""How often an agent says what is so, and over how many connections it can be reached."""

from __future__ import annotations

import asyncio
import time

from tests.agent.conftest import AgentProcess, MakeAgent
from tests.agent.fake_edge import FakeEdge


async def test_while_a_report_is_not_answered_the_next_one_without_news_waits_and_the_lease_is_still_asked_for(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.silent = True
    await asyncio.sleep(edge.poll_seconds)
    said, began = len(edge.observed), time.monotonic()
    await asyncio.sleep(10 * edge.poll_seconds)
    polls = (time.monotonic() - began) / edge.poll_seconds
    later = len(edge.observed) - said
    assert 1 <= later <= polls / 2 + 1
    edge.silent = False
    await edge.push()  # answers the last one
    await edge.until(lambda: len(edge.observed) > said + later + 3)


async def test_a_kept_hardware_event_that_can_not_be_read_keeps_nobody_from_the_line(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    agent = await make_agent()
    await agent.kill()
    for name, text in (("damaged", "{"), ("of-a-newer-agent", '{"event": "x", "ts": 9e9}')):
        (agent.state / "health" / f"{name}.json").write_text(text)
    await agent.start()
    assert not list((agent.state / "health").glob("*.json"))


async def test_a_host_with_hundreds_of_open_workspace_connections_still_reaches_its_server(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.streams_wanted = 150
    await edge.push()
    await edge.until(lambda: len(edge.idle_streams) == 150)
    said = len(edge.observed)
    for socket in list(edge.sync_sockets):
        await socket.close()
    await edge.until(lambda: len(edge.observed) > said)


async def test_an_agent_whose_report_was_answered_comes_back_at_once_however_often_its_line_breaks(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    edge.poll_seconds = 5.0  # so that it is not the lease that keeps pauses short
    await edge.push()
    began = time.monotonic()
    for _ in range(10):
        await asyncio.sleep(0.2)  # the answer gets there
        said = len(edge.observed)
        for socket in list(edge.sync_sockets):
            await socket.close()
        await edge.until(lambda said=said: len(edge.observed) > said)  # type: ignore[misc]
    assert time.monotonic() - began < 18, "with pauses that grow to 8 s it takes some 25 s"
