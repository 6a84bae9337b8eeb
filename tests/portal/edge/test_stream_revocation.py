"""Test that an agent's streams for workspaces end when the agent loses its credential.

A log that cannot be stored does not disconnect the agent.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agent import protocol
from portal.edge.agents import streams
from portal.models import User
from portal.redis_state import log_loss
from scheduler import services
from scheduler.models import Host
from scheduler.state import nudge
from scheduler.sync import agent_api
from tests.portal.edge.conftest import Notebook, SmallAgent, observed, run_orm
from tests.portal.edge.test_agents import revoke
from tests.waiting import DEADLINE_SECONDS, until

ENDED = (
    aiohttp.WSMsgType.CLOSE,
    aiohttp.WSMsgType.CLOSING,
    aiohttp.WSMsgType.CLOSED,
    aiohttp.WSMsgType.ERROR,
)


async def socket_echoes(socket: aiohttp.ClientWebSocketResponse) -> bool:
    """Return True if a message sent over this socket reaches the run and comes back."""
    try:
        await socket.send_str("anybody there?")
        return bool((await socket.receive(timeout=DEADLINE_SECONDS)).data == "anybody there?")
    except ConnectionError:
        return False


def fleet_page(user: User) -> str:
    browser = Client()
    browser.force_login(user)
    return str(browser.get(reverse("fleet")).content, "utf-8")


async def drop_agent_connection(agent: SmallAgent) -> None:
    assert agent.socket is not None
    await agent.socket.close()
    await until(lambda: not agent.edge_site.edge.agents.is_connected(agent.host.pk))


async def test_a_revoked_agent_receives_no_more_workspace_traffic(
    notebook: Notebook, agent: SmallAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "OPEN_TIMEOUT_SECONDS", 0.2)
    cookie = await notebook.enter()
    assert (await notebook.get("/lab", cookie)).status == 200, (
        "over a stream that is kept open for the next request"
    )
    in_use = await notebook.socket(cookie)
    assert await socket_echoes(in_use)
    await run_orm(revoke, agent.host)
    assert (await in_use.receive(timeout=DEADLINE_SECONDS)).type in ENDED
    assert agent.edge_site.edge.agents.streams.hosts() == []
    assert 200 not in [(await notebook.get(f"/lab?{n}", cookie)).status for n in range(2)]


async def test_streams_end_if_the_agent_is_revoked_while_disconnected(
    notebook: Notebook, agent: SmallAgent
) -> None:
    in_use = await notebook.socket(await notebook.enter())
    await drop_agent_connection(agent)
    assert await socket_echoes(in_use), "a lost connection closes no socket"
    await run_orm(revoke, agent.host)
    assert (await in_use.receive(timeout=DEADLINE_SECONDS)).type in ENDED
    assert agent.edge_site.edge.agents.streams.hosts() == []


async def test_streams_of_the_previous_agent_end_when_another_agent_joins(
    notebook: Notebook, agent: SmallAgent
) -> None:
    in_use = await notebook.socket(await notebook.enter())
    await drop_agent_connection(agent)

    def join() -> str:
        host = Host.objects.get(pk=agent.host.pk)
        token = services.issue_join_token(host, now=timezone.now())
        request = protocol.JoinRequest(1, token, host.name, "another installation", host.boot_id)
        return agent_api.join(request, timezone.now()).credential

    other = SmallAgent(notebook.edge_site, agent.host, await run_orm(join))
    await other.connect()
    assert await socket_echoes(in_use)
    await other.send(observed(instance="another installation"))
    assert isinstance(await other.receive(), protocol.Desired)
    assert (await in_use.receive(timeout=DEADLINE_SECONDS)).type in ENDED
    await other.close()


async def test_a_log_that_cannot_be_stored_does_not_disconnect_the_agent(
    notebook: Notebook, agent: SmallAgent, settings: Any, tmp_path: Path
) -> None:
    settings.GPUPOOL_STATE = tmp_path
    (tmp_path / "logs").write_text("a file in place of the folder: no folder can be created")
    run = str(notebook.run.public_id)
    await agent.send(protocol.LogChunk(run, 0, "lost\n"))
    await agent.send(
        observed(sequence=2, runs=[protocol.RunSeen(run, notebook.run.generation, "running", ready=True)])
    )
    await agent.receive_answer(2)
    assert await run_orm(log_loss.is_log_loss_reported)
    page = await run_orm(fleet_page, notebook.edge_site.world.operator)
    assert "Logs of workloads are being lost" in page
    assert "is being lost" not in await run_orm(fleet_page, notebook.owner), (
        "only operators can repair it, so members do not see it"
    )
    await run_orm(lambda: nudge.redis_connection().delete(log_loss.LOG_LOSS_KEY))
    await asyncio.to_thread((tmp_path / "logs").unlink)
    await agent.send(protocol.LogChunk(run, 5, "kept\n"))
    await until(lambda: list((tmp_path / "logs").glob("*/*/0")))
