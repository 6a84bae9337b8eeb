"""Test the proxy configurations of `deploy/`: nginx and Caddy before two web and two edge processes.

The tests change only names, addresses, certificates, log files and Caddy's admin endpoint.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from django.conf import settings
from django.utils import timezone

from benchmarks.harness.tls_proxy import (
    CERTIFICATE,
    KEY,
    ProxySettings,
    nginx_command,
    replaced_addresses,
    write_certificate,
)
from portal.redis_state.serving_edge import ACTIVE_EDGE_KEY, serving_edge
from scheduler.state import nudge
from tests.portal.edge.conftest import free_port, give_credential, run_orm
from tests.scheduler.conftest import test_database_url as database_url
from tests.waiting import until
from tests.world import World, build_world
from tools.paths import ROOT, find_program
from tools.processes import die_with_parent

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("proxies")]

PORTAL, NOTEBOOKS = "gpus.localhost", "notebooks.localhost"
HEADER_GUARD = "config.http.slow_header_guard:HeaderTimeoutProtocol"


class LoopbackResolver(AbstractResolver):
    """Resolve every name to 127.0.0.1."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0)
        ]

    async def close(self) -> None:
        """Close nothing."""


@dataclass
class ProxiedSite:
    """Two web and two edge processes behind one proxy."""

    folder: Path
    port: int
    ports: dict[str, int]
    session: aiohttp.ClientSession
    world: World
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"https://{PORTAL}:{self.port}"

    def start(self, name: str, command: list[str], env: dict[str, str], root: Path) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=root, env=env, stdout=log, stderr=log, preexec_fn=die_with_parent
            )

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in self.folder.glob("*.log"))

    async def status_of(self, url: str, **options: Any) -> int:
        """Return the status of a GET; 0 if the proxy does not listen yet."""
        try:
            async with self.session.get(url, **options) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientConnectorError:
            return 0

    async def answers(self, url: str, *statuses: int) -> None:
        """Wait until a GET returns one of these statuses."""
        for name, process in self.processes.items():
            assert process.poll() is None or process.returncode < 0, f"{name}\n{self.logs()}"
        found = 0
        try:
            async with asyncio.timeout(60):
                while (found := await self.status_of(url, allow_redirects=False)) not in statuses:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{url} answers {found}\n{self.logs()}") from None

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()


def caddy_command(proxy: ProxySettings) -> list[str]:
    text = replaced_addresses((ROOT / "deploy" / "Caddyfile").read_text(), proxy)
    tls = f"tls {proxy.folder}/{CERTIFICATE} {proxy.folder}/{KEY}"
    text = text.replace("gpus.example.org {", f"https://{PORTAL}:{proxy.port} {{\n\tbind 127.0.0.1\n\t{tls}")
    text = text.replace(
        "*.notebooks.example.net {", f"https://*.{NOTEBOOKS}:{proxy.port} {{\n\tbind 127.0.0.1\n\t{tls}"
    )
    text = text.replace("{\n\tservers {", "{\n\tadmin off\n\tauto_https disable_redirects\n\tservers {", 1)
    own = proxy.folder / "Caddyfile"
    own.write_text(text)
    return [str(find_program("caddy")), "run", "--config", str(own), "--adapter", "caddyfile"]


COMMANDS = {"nginx": nginx_command, "caddy": caddy_command}


@pytest.fixture(autouse=True)
def free_key() -> Iterator[None]:
    nudge.redis_connection().delete(ACTIVE_EDGE_KEY)
    yield
    nudge.redis_connection().delete(ACTIVE_EDGE_KEY)


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in COMMANDS])
async def site(
    request: pytest.FixtureRequest, transactional_db: None, tmp_path: Path, root: Path
) -> AsyncIterator[ProxiedSite]:
    """Start two web and two edge processes, and the proxy before them."""
    write_certificate(tmp_path, [PORTAL, f"*.{NOTEBOOKS}"])
    world = await run_orm(build_world, timezone.now())
    port = free_port()
    names = ("web-1", "web-2", "edge-1", "edge-2")
    ports: dict[str, int] = {}
    while len(set(ports.values()) - {port}) < len(names):
        ports = {name: free_port() for name in names}
    env = {
        **os.environ,
        "DATABASE_URL": await run_orm(database_url),
        "REDIS_URL": settings.REDIS_URL,
        "GPUPOOL_ENVIRONMENT": "test",
        "GPUPOOL_SECRET_KEY": settings.SECRET_KEY,
        "GPUPOOL_STATE": str(tmp_path),
        "GPUPOOL_PORTAL_URL": f"https://{PORTAL}:{port}",
        "GPUPOOL_EDGE_URL": f"https://{PORTAL}:{port}",
        "GPUPOOL_NOTEBOOK_DOMAIN": f"{NOTEBOOKS}:{port}",
        "GPUPOOL_EDGE_STANDBY": "yes",
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    trust = ssl.create_default_context(cafile=str(tmp_path / CERTIFICATE))
    connector = aiohttp.TCPConnector(resolver=LoopbackResolver(), ssl=trust, force_close=True)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        made = ProxiedSite(tmp_path, port, ports, session, world)
        try:
            web = [sys.executable, "-m", "uvicorn", "config.asgi:application", "--http", HEADER_GUARD]
            for name in ("web-1", "web-2"):
                made.start(name, [*web, "--no-access-log", "--port", str(ports[name])], env, root)
            for name in ("edge-1", "edge-2"):
                made.start(name, [sys.executable, "-m", "portal.edge", "--port", str(ports[name])], env, root)
            proxy = ProxySettings(tmp_path, port, ports, PORTAL, NOTEBOOKS)
            made.start(request.param, COMMANDS[request.param](proxy), env, root)
            for name in ("web-1", "web-2"):
                await made.answers(f"http://127.0.0.1:{ports[name]}/healthz", 200, 301)
            await made.answers(made.url + "/healthz", 200)
            await made.answers(made.url + "/events", 400)  # the edge misses the topics
            yield made
        finally:
            for process in made.processes.values():
                process.kill()
            for process in made.processes.values():
                process.wait()


async def test_two_web_and_two_edge_processes_serve_behind_the_proxy_while_each_is_killed(
    site: ProxiedSite,
) -> None:
    # Pages and API come from web, over TLS for the browser.
    async with site.session.get(site.url + "/accounts/login/") as answer:
        page = await answer.text()
        assert answer.status == 200 and "Sign in" in page
        assert "Secure" in answer.headers.get("Set-Cookie", "")
    assert await site.status_of(site.url + "/api/v1/me/") == 401
    # Workspaces and agents come from the edge.
    workspace = f"https://lab.{NOTEBOOKS}:{site.port}/"
    assert await site.status_of(workspace) == 403
    credential = await run_orm(give_credential, site.world.hosts["alpha"])
    agent = {"Authorization": f"Bearer {credential}"}
    socket = await site.session.ws_connect(site.url + "/agent/v1/sync", headers=agent)
    assert not socket.closed

    # Without the first web process, no request fails.
    site.kill("web-1")
    for _ in range(10):
        assert await site.status_of(site.url + "/healthz") == 200, site.logs()

    # The second edge takes over: the agent connects again, and workspaces and live events are served.
    serving = await asyncio.to_thread(serving_edge)
    first = next(name for name in ("edge-1", "edge-2") if serving.endswith(f":{site.ports[name]}"))
    site.kill(first)
    message = await socket.receive()
    assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    await site.answers(workspace, 403)
    await site.answers(site.url + "/events", 400)
    async with site.session.ws_connect(site.url + "/agent/v1/sync", headers=agent) as again:
        assert not again.closed
    assert await asyncio.to_thread(serving_edge) != serving

    # An access log, if the configuration has one, hides one-time links.
    for log in site.folder.glob("gpupool-access.log"):
        await site.status_of(site.url + "/accounts/password/reset/key/1-secret/?code=hidden-code")
        await until(lambda log=log: "/accounts/password/reset/key/" in log.read_text())  # type: ignore[misc]
        assert "1-secret" not in log.read_text() and "hidden-code" not in log.read_text()
