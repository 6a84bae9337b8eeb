"""Test when an agent reports and reconnects."""

from __future__ import annotations

import time

from tests.agent.conftest import AgentProcess, MakeAgent
from tests.agent.fake_edge import FakeEdge


async def test_unanswered_reports_slow_down_but_still_request_leases(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    await make_agent(constants={"agent.server.connection.UNANSWERED_POLLS": 4.0})
    edge.silent = True
    pauses: list[float] = []
    for _ in range(4):
        began, reports = time.monotonic(), len(edge.observed)
        await edge.until(lambda reports=reports: len(edge.observed) > reports)  # type: ignore[misc]
        pauses.append(time.monotonic() - began)
    # Skip the first pause: that report may answer the edge's last frame. Compare the sum, not each pause,
    # because a frame may arrive late on a busy machine.
    assert sum(pauses[1:]) > 2 * 4 * edge.poll_seconds
    edge.silent = False
    await edge.push()  # this frame answers the last report
    await edge.after_reports(3)


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
    closed = list(edge.sync_sockets)
    for socket in closed:
        await socket.close()
    await edge.until(lambda: len(edge.observed) > reports and edge.sync_sockets)
    assert edge.sync_sockets.isdisjoint(closed)


async def test_an_agent_reconnects_at_once_after_an_answered_report(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    """Reconnect 20 times. If the pause doubled each time, the test would exceed its deadline."""
    agent = await make_agent(
        constants={
            "agent.server.connection.MAX_RETRY_SECONDS": 1e6,
            "agent.server.connection.MAX_RETRY_POLLS": 1e6,
        }
    )
    await agent.after_steps("desired", 0)
    connections = set()
    for _ in range(20):
        answered, closed = agent.count("desired"), set(edge.sync_sockets)
        for socket in closed:
            await socket.close()
        await edge.until(lambda: edge.sync_sockets - closed and agent.count("desired") > answered)  # noqa: B023
        connections |= closed
    assert len(connections) >= 20, "each round closes a new connection"
