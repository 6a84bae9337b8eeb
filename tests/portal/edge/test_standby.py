"""Test that one of two edge processes serves, and that the other one takes over."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from django.conf import settings as django_settings

from portal.edge.runtime.active_edge import ActiveEdge
from portal.edge.server import EdgeServer, running_server
from portal.redis_state.serving_edge import ACTIVE_EDGE_KEY
from scheduler.state import nudge
from tests.portal.edge.conftest import EdgeSite, free_port, give_credential, run_orm
from tests.waiting import until


@pytest.fixture(autouse=True)
def free_key() -> None:
    nudge.redis_connection().delete(ACTIVE_EDGE_KEY)


@contextlib.asynccontextmanager
async def two_elections() -> AsyncIterator[tuple[ActiveEdge, ActiveEdge]]:
    url = django_settings.REDIS_URL
    first, second = ActiveEdge(url, 1), ActiveEdge(url, 2)
    try:
        yield first, second
    finally:
        await second.release()


async def test_one_of_two_processes_serves_and_the_other_one_follows_it() -> None:
    async with two_elections() as (first, second):
        await first.renew()
        await second.renew()
        assert (first.is_active, second.is_active) == (True, False)
        assert 0 < nudge.redis_connection().pttl(ACTIVE_EDGE_KEY) <= 5_000  # type: ignore[operator]
        await first.release()
        await second.renew()
        assert second.is_active


async def test_a_process_whose_key_another_one_took_stands_by() -> None:
    lost: list[str] = []

    async def on_loss() -> None:
        lost.append("lost")

    edge = ActiveEdge(django_settings.REDIS_URL, 1)
    edge.on_loss = on_loss
    await edge.renew()
    nudge.redis_connection().set(ACTIVE_EDGE_KEY, "other:2", px=5_000)
    await edge.renew()
    await edge.renew()
    assert (edge.is_active, lost) == (False, ["lost"])
    await edge.release()
    assert nudge.redis_connection().get(ACTIVE_EDGE_KEY) == b"other:2"


async def test_nothing_changes_while_redis_is_unavailable() -> None:
    edge = ActiveEdge("unix:///nowhere/at/all", 1)
    edge.is_active = True
    await edge.renew()
    assert edge.is_active


@pytest.fixture
async def standby_site(edge_site: EdgeSite, settings: Any) -> AsyncIterator[tuple[EdgeServer, str, str]]:
    """Start a second edge that stands by, because another process has the key.

    Yields the edge, its address, and that of its metrics.
    """
    settings.GPUPOOL_EDGE_STANDBY = True
    nudge.redis_connection().set(ACTIVE_EDGE_KEY, "other:2", px=60_000)
    port, metrics = free_port(), free_port()
    async with running_server("127.0.0.1", port, metrics) as edge:
        yield edge, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}"


@pytest.mark.django_db(transaction=True)
async def test_a_standby_listens_once_it_serves_and_stops_when_it_stands_by_again(
    edge_site: EdgeSite, standby_site: tuple[EdgeServer, str, str]
) -> None:
    edge, url, metrics = standby_site
    credential = await run_orm(give_credential, edge_site.world.hosts["alpha"])
    agent = {"Authorization": f"Bearer {credential}"}

    async def status_of(address: str) -> int:
        async with edge_site.session.get(address) as answer:
            return answer.status

    with pytest.raises(aiohttp.ClientConnectorError):
        await status_of(url + "/healthz")
    assert (await status_of(metrics + "/healthz"), await status_of(metrics + "/readyz")) == (200, 503)
    nudge.redis_connection().delete(ACTIVE_EDGE_KEY)
    await until(lambda: edge.is_active)
    assert (await status_of(url + "/readyz"), await status_of(metrics + "/readyz")) == (200, 200)
    async with edge_site.session.ws_connect(url + "/agent/v1/sync", headers=agent) as socket:
        # The agents of a process that stands by again connect to the serving one.
        nudge.redis_connection().set(ACTIVE_EDGE_KEY, "other:2", px=60_000)
        message = await socket.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    assert not edge.is_active
    with pytest.raises(aiohttp.ClientConnectorError):
        await status_of(url + "/healthz")
