"""How often an agent says what is so."""

from __future__ import annotations

import asyncio
import time

from tests.agent.conftest import AgentProcess
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
