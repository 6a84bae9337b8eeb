"""Test that idle connections do not stop the edge: limits of connections, and of the first request."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from django.conf import settings as django_settings

from portal.edge.runtime import connection_limits
from portal.edge.runtime.connection_limits import RESERVED_DESCRIPTORS, ConnectionLimits
from portal.edge.server import EdgeServer, running_server
from tests.portal.edge.conftest import free_port, run_orm
from tests.scheduler.conftest import test_database_url as database_url
from tests.waiting import DEADLINE_SECONDS, until

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
ROOT = Path(__file__).resolve().parents[3]


def test_an_address_and_all_together_have_a_limit() -> None:
    limits = ConnectionLimits(total=4, per_address=2, proxies=LOOPBACK, files=10_000)
    assert [limits.admit("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert [limits.admit("192.0.2.2") for _ in range(3)] == [True, True, False]
    assert not limits.admit("192.0.2.3"), "four connections are open"
    limits.release("192.0.2.1")
    assert limits.admit("192.0.2.3")


def test_a_proxy_has_only_the_total_limit() -> None:
    limits = ConnectionLimits(total=4, per_address=2, proxies=LOOPBACK, files=10_000)
    assert [limits.admit("127.0.0.1") for _ in range(5)] == [True] * 4 + [False]


def test_connections_leave_descriptors_for_the_rest_of_the_process() -> None:
    assert ConnectionLimits(20_000, 10, (), files=1024).total == 1024 - RESERVED_DESCRIPTORS
    assert ConnectionLimits(20_000, 10, (), files=65_536).total == 20_000


def test_the_units_allow_more_open_files_than_the_edge_has_connections() -> None:
    unit = (ROOT / "deploy" / "systemd" / "gpupool-edge.service").read_text()
    limit = re.search(r"^LimitNOFILE=(\d+)$", unit, re.MULTILINE)
    assert limit and int(limit[1]) > django_settings.GPUPOOL_EDGE_CONNECTIONS + RESERVED_DESCRIPTORS
    for other in (ROOT / "deploy" / "systemd").glob("*.service"):
        text = other.read_text()
        assert "Type=oneshot" in text or "LimitNOFILE=" in text, other.name


@contextlib.asynccontextmanager
async def edge_with(settings: Any, **values: Any) -> AsyncIterator[tuple[EdgeServer, int]]:
    """Run an edge in this process with these settings."""
    port = free_port()
    settings.GPUPOOL_EDGE_URL = f"http://127.0.0.1:{port}"
    for name, value in values.items():
        setattr(settings, name, value)
    async with running_server("127.0.0.1", port) as edge:
        yield edge, port


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Return True if the edge closes the connection."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await reader.read(1) == b""
    except ConnectionError:
        return True


async def test_a_connection_over_the_limit_is_closed_and_the_others_are_served(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[str] = []
    release = ConnectionLimits.release

    def release_and_record(limits: ConnectionLimits, address: str) -> None:
        release(limits, address)
        released.append(address)

    monkeypatch.setattr(ConnectionLimits, "release", release_and_record)
    async with edge_with(settings, GPUPOOL_EDGE_CONNECTIONS=3) as (_, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        refused, _writer = await asyncio.open_connection("127.0.0.1", port)
        assert await is_closed(refused)
        reader, writer = opened[0]
        writer.write(f"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        opened[1][1].close()
        await until(lambda: released)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 404"), "the closed connection makes room"
        writer.close()
        for _, each in opened:
            each.close()


async def test_a_connection_without_a_request_is_closed_and_one_after_a_request_stays(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "FIRST_HEAD_SECONDS", 0.5)
    async with edge_with(settings) as (_, port):
        used, writer = await asyncio.open_connection("127.0.0.1", port)
        request = f"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        writer.write(request)
        assert (await used.readline()).startswith(b"HTTP/1.1 404")
        idle, _ = await asyncio.open_connection("127.0.0.1", port)
        assert await is_closed(idle), "it was opened after the other connection"
        writer.write(request)
        await used.readuntil(b"HTTP/1.1 404")
        writer.close()


@pytest.mark.long
async def test_an_edge_with_1024_files_serves_others_beside_1100_idle_connections(
    transactional_db: None, tmp_path: Path
) -> None:
    port = free_port()
    environment = {
        "PATH": "/usr/bin:/bin",
        "DATABASE_URL": await run_orm(database_url),
        "REDIS_URL": django_settings.REDIS_URL,
        "GPUPOOL_ENVIRONMENT": "test",
        "GPUPOOL_SECRET_KEY": django_settings.SECRET_KEY,
        "GPUPOOL_STATE": str(tmp_path),
        "GPUPOOL_PORTAL_URL": django_settings.GPUPOOL_PORTAL_URL,
        "GPUPOOL_EDGE_URL": f"http://127.0.0.1:{port}",
    }
    output = tmp_path / "edge.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "portal.edge"],
            env=environment,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)),
        )
    idle: list[asyncio.StreamWriter] = []
    try:
        await until(lambda: "edge listens" in output.read_text() or process.poll() is not None)
        for _ in range(1100):
            with contextlib.suppress(ConnectionError):
                idle.append((await asyncio.open_connection("127.0.0.1", port))[1])
        for writer in idle[:10]:
            writer.close()
        status = 0
        async with aiohttp.ClientSession() as session:
            while status != 200:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                        status = answer.status
        assert process.poll() is None
    finally:
        for writer in idle:
            writer.close()
        process.terminate()
        await asyncio.to_thread(process.wait, 60)
    assert output.stat().st_size < 100_000
    assert "more lines of this event were dropped" in output.read_text()
