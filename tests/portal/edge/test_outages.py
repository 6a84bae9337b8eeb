"""Test the edge during outages of PostgreSQL and Redis, and its shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
import redis
from django.conf import settings
from django.db import OperationalError
from django.utils import timezone
from psycopg import errors

from agent import protocol
from portal.edge.agents import database_calls, database_contact
from portal.edge.runtime.database_threads import DatabaseThreads
from portal.edge.workspaces import access, access_cache
from scheduler import services
from scheduler.coordination.leases import MEMORY_RENEWAL_SECONDS
from scheduler.models import EdgeContact, Host
from scheduler.sync import agent_api as scheduler_api
from tests.portal.edge.conftest import EdgeSite, Notebook, SmallAgent, free_port, observed, run_orm
from tests.scheduler.conftest import test_database_url as database_url
from tests.waiting import until


def cut_database_connections(url: str) -> int:
    with psycopg.connect(url) as owner:
        found = owner.execute(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert found is not None
    return int(found[0])


async def test_broken_database_connections_are_replaced(notebook: Notebook, agent: SmallAgent) -> None:
    cookie = await notebook.enter()
    seen = protocol.RunSeen(str(notebook.run.public_id), notebook.run.generation, "running", ready=True)
    for number in range(2, 5):
        assert await asyncio.to_thread(cut_database_connections, database_url()) > 0
        notebook.edge_site.edge.access_cache.changed()
        assert (await notebook.get("/lab", cookie)).status == 200
        await agent.send(observed(number, runs=[seen]))
        assert await agent.receive_answer(number)


async def test_a_report_is_answered_although_its_database_connection_breaks(
    edge_site: EdgeSite, agent: SmallAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scheduler_api.sync
    cut: list[int] = []

    def cut_once(
        host_id: int, frame: protocol.Observed, now: dt.datetime, faults: frozenset[str]
    ) -> protocol.Desired:
        """Break the database connection after the first sync, and sync again."""
        answer = real(host_id, frame, now, faults)
        if not cut:
            cut.append(cut_database_connections(database_url()))
            return real(host_id, frame, now, faults)
        return answer

    monkeypatch.setattr(scheduler_api, "sync", cut_once)
    await agent.connect()
    await agent.send(observed(7))
    assert await agent.receive_answer(7)
    assert cut


@pytest.mark.parametrize(
    ("state", "asked"), [("57P01", 2), ("25P03", 2), (None, 2), ("40P01", 1), ("57014", 1)]
)
async def test_a_query_is_retried_only_on_a_broken_connection_and_only_once(
    state: str | None, asked: int
) -> None:
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise OperationalError("over") from (
            errors.lookup(state)("over") if state else psycopg.OperationalError("over")
        )

    threads = DatabaseThreads(1, "asking")
    try:
        with pytest.raises(OperationalError):
            await threads.run_repeatable(broken)
        assert len(calls) == asked
        calls.clear()
        with pytest.raises(OperationalError):
            await threads.run(broken)
        assert len(calls) == 1
    finally:
        threads.close()


async def test_users_and_agents_are_asked_to_retry_while_the_database_is_down(
    notebook: Notebook, agent: SmallAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OperationalError("the server is unavailable")

    cookie = await notebook.enter()
    socket = await notebook.socket(cookie)
    with monkeypatch.context() as outage:
        outage.setattr(access, "grants_by_token_hash", fail)
        outage.setattr(database_calls, "sync", fail)
        outage.setattr(database_calls, "authenticate", fail)
        notebook.edge_site.edge.access_cache.changed()
        answer = await notebook.get("/lab", cookie, Accept="text/html")
        assert answer.status == 503
        assert "Retry-After" in answer.headers
        await agent.send(observed(start="a start that the database has not confirmed"))
        refused = await agent.receive_refusal()
        assert refused.retry
        assert "unavailable" in refused.reason
        with pytest.raises(aiohttp.WSServerHandshakeError) as rejected:
            await agent.connect()
        assert rejected.value.status == 503
        await socket.send_str("an open socket goes on")
        assert (await socket.receive()).data == "an open socket goes on"
        # An open socket may stay unverified only for a limited time.
        outage.setattr(access_cache, "MAX_UNVERIFIED_SECONDS", 0.0)
        notebook.edge_site.edge.access_cache.changed()
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    assert (await notebook.get("/lab", cookie)).status == 200


@contextlib.asynccontextmanager
async def held_row(host: int) -> AsyncIterator[None]:
    """Hold the lock of a host's row, so that every statement that reports for the host hangs."""
    other = await asyncio.to_thread(psycopg.connect, database_url())
    try:
        await asyncio.to_thread(other.execute, "SELECT FROM scheduler_host WHERE id = %s FOR UPDATE", [host])
        yield
    finally:
        await asyncio.to_thread(other.close)


def unavailable(*_: Any) -> None:
    raise OperationalError("the server is unavailable")


def last_sync(host: Host) -> dt.datetime | None:
    return Host.objects.get(pk=host.pk).last_sync_at


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the edge answer from memory after a tenth of a second."""
    monkeypatch.setattr(database_contact, "MAX_ANSWER_SECONDS", 0.1)


async def test_while_the_database_hangs_leases_are_renewed_from_memory_and_then_written(
    edge_site: EdgeSite, agent: SmallAgent, impatient: None
) -> None:
    agents = edge_site.edge.agents
    await agent.connect()
    await agent.send(observed(1))
    confirmed = await agent.receive_answer(1)
    assert not confirmed.renewed_from_memory
    heard_at = await run_orm(last_sync, agent.host)
    async with held_row(agent.host.pk):
        for number in (2, 3):
            await agent.send(observed(number))
            renewed = await agent.receive_answer(number)
            assert renewed.renewed_from_memory
            assert renewed.lease_seconds == confirmed.lease_seconds
        assert list(agents.memory.unwritten()) == [(agent.host.pk, "instance-of-alpha")]
        await until(lambda: agents.contact.away)  # its contact waits, because it could not write the renewals
        await agent.send(protocol.LogChunk("00000000-0000-0000-0000-000000000000", 0, "not kept"))
        await agent.send(observed(4))
        assert (await agent.receive_answer(4)).renewed_from_memory, "the dropped log ends no connection"
    await until(lambda: not agents.contact.away and not agents.memory.unwritten())
    written = await run_orm(last_sync, agent.host)
    assert heard_at is not None and written is not None and written > heard_at
    await agent.send(observed(5))
    refused = await agent.receive_refusal()
    assert refused.retry and "send them again" in refused.reason, "the log is sent on the next connection"


async def test_an_agent_resumes_its_connection_while_the_database_is_away(
    edge_site: EdgeSite, agent: SmallAgent, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.connect()
    await agent.send(observed(1))
    key = (await agent.receive_answer(1)).stream_key
    for call in ("authenticate", "sync"):
        monkeypatch.setattr(database_calls, call, unavailable)
    for wrong in ("", "0" * 32):
        agent.stream_key = wrong
        with pytest.raises(aiohttp.WSServerHandshakeError) as rejected:
            await agent.connect_with_key()
        assert rejected.value.status == 503
    agent.stream_key = key
    await agent.connect_with_key()
    await agent.send(observed(2, boot_id="another boot"))
    assert (await agent.receive_refusal()).retry, "only the same process is renewed"
    await agent.connect_with_key()
    await agent.send(observed(2))
    assert (await agent.receive_answer(2)).renewed_from_memory


async def test_an_agent_that_the_database_has_rejected_is_not_renewed_from_memory(
    edge_site: EdgeSite, agent: SmallAgent, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.connect()
    await agent.send(observed(1))
    key = (await agent.receive_answer(1)).stream_key
    await run_orm(services.revoke_credential, agent.host, now=timezone.now())
    assert not (await agent.receive_refusal()).retry
    monkeypatch.setattr(database_calls, "authenticate", unavailable)
    agent.stream_key = key
    with pytest.raises(aiohttp.WSServerHandshakeError) as rejected:
        await agent.connect_with_key()
    assert rejected.value.status == 503


async def test_after_a_redis_outage_every_agent_receives_its_desired_state_again(
    edge_site: EdgeSite, agent: SmallAgent
) -> None:
    await agent.connect()
    await agent.send(observed())
    await agent.receive()

    def cut() -> None:
        # Other test processes use other databases of the same server.
        with redis.Redis.from_url(settings.REDIS_URL) as store:
            own = store.client_info()["db"]
            for client in store.client_list(_type="pubsub"):
                if client["db"] == str(own):
                    store.client_kill_filter(_id=client["id"])

    await asyncio.to_thread(cut)
    assert isinstance(await agent.receive(), protocol.Desired)
    await until(lambda: edge_site.edge.bus.connected)


@pytest.mark.long
async def test_the_edge_process_answers_requests_and_rejects_bad_ports_and_stops_in_time(
    transactional_db: None, tmp_path: Path
) -> None:
    port, figures = free_port(), free_port()
    environment = {
        "PATH": "/usr/bin:/bin",
        "DATABASE_URL": await run_orm(database_url),
        "REDIS_URL": settings.REDIS_URL,
        "GPUPOOL_ENVIRONMENT": "test",
        "GPUPOOL_SECRET_KEY": settings.SECRET_KEY,
        "GPUPOOL_STATE": str(tmp_path),
        "GPUPOOL_PORTAL_URL": settings.GPUPOOL_PORTAL_URL,
        "GPUPOOL_EDGE_URL": f"http://127.0.0.1:{port}",
    }

    def start(*more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "portal.edge", *more]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    process = start("--metrics-port", str(figures))
    try:
        async with aiohttp.ClientSession() as session:
            for _ in range(200):
                try:
                    async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                        health = await answer.json()
                    if health["redis"] == "ok":
                        break
                except aiohttp.ClientError:
                    assert process.poll() is None
                await asyncio.sleep(0.1)
            assert health == {"database": "ok", "redis": "ok", "serves": True}
            async with session.get(f"http://127.0.0.1:{figures}/metrics") as answer:
                assert "gpupool_edge_agents 0.0" in await answer.text()
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                assert answer.status == 404
        second = await asyncio.to_thread(start)
        output = (await asyncio.to_thread(second.communicate))[0]
        assert second.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}" in output
        wrong = await asyncio.to_thread(start, "--port", "70000")
        assert "'70000' is not a port; allowed: 1 to 65535" in (await asyncio.to_thread(wrong.communicate))[0]
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0


def test_a_contact_has_the_time_at_which_its_renewals_were_read(db: None) -> None:
    asked_at = database_contact.boottime() - 20  # the call has waited for the database
    process = database_calls.EdgeProcess("edge", "machine:8471", asked_at - 60)
    limits = database_calls.record_contact(process, {}, asked_at)
    seen_at = EdgeContact.objects.get().seen_at
    assert 19 < (timezone.now() - seen_at).total_seconds() < 100
    assert limits.seconds == pytest.approx(MEMORY_RENEWAL_SECONDS)
    assert limits.maintenance_seconds == 0
