"""Serve agents, workspaces and live events in one edge process.

The Host header of a request selects the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import structlog
from aiohttp import hdrs, web
from django.conf import settings
from django.db import DatabaseError, connection
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from portal.edge.agents.connections import AgentConnections
from portal.edge.page_events import PageEvents
from portal.edge.runtime.active_edge import ActiveEdge
from portal.edge.runtime.database_threads import DatabaseThreads
from portal.edge.runtime.redis_bus import RedisBus
from portal.edge.workspaces.access_cache import WorkspaceAccessCache
from portal.edge.workspaces.activity import WorkspaceActivity
from portal.edge.workspaces.proxy import WorkspaceProxy
from portal.processes.probe_server import record_process
from portal.processes.reports import report_until_cancelled

log = structlog.get_logger(__name__)

# The sum of both thread counts is smaller than the number of connections in the process's database pool.
AGENT_THREAD_COUNT = 6
BROWSER_THREAD_COUNT = 4
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# Timeout for the head of a request and for an idle connection. It is longer than the timeouts of proxies
# (nginx 60 s, Caddy 120 s), so that the proxy closes the connection first.
KEEPALIVE_SECONDS = 150.0
WORKSPACE_LABEL_PATTERN = re.compile(r"^[a-z0-9][a-z0-9-]{0,39}$")


class EdgeServer:
    """The parts of one edge process."""

    def __init__(self, port: int) -> None:
        self.bus = RedisBus(settings.REDIS_URL)
        self.agent_threads = DatabaseThreads(AGENT_THREAD_COUNT, "agents")
        self.people_threads = DatabaseThreads(BROWSER_THREAD_COUNT, "people")
        self.access_cache = WorkspaceAccessCache(self.people_threads, self.bus)
        self.agents = AgentConnections(self.agent_threads, self.bus, runs_changed=self.access_cache.changed)
        self.activity = WorkspaceActivity(self.bus)
        self.workspaces = WorkspaceProxy(
            self.people_threads, self.access_cache, self.agents.streams, self.activity
        )
        self.events = PageEvents(self.people_threads, self.bus)
        # None if this process always serves.
        self.election = ActiveEdge(settings.REDIS_URL, port) if settings.GPUPOOL_EDGE_STANDBY else None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the background tasks of the process."""
        coroutines = [self.bus.run(), self.access_cache.watch(), self.activity.write()]
        coroutines.append(report_until_cancelled("edge"))
        if self.election is not None:
            coroutines.append(self.election.keep())
        for coroutine in coroutines:
            task = asyncio.create_task(coroutine)
            task.add_done_callback(_stop_if_it_failed)
            self._tasks.append(task)

    async def close(self) -> None:
        """Close every connection and release the resources."""
        if self.election is not None:
            await self.election.release()  # before agents connect again
        self.events.close()
        self.access_cache.close()
        await self.agents.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.activity.write_once()
        await self.workspaces.close()
        await self.bus.close()
        self.agent_threads.close()
        self.people_threads.close()

    async def healthz(self, request: web.Request) -> web.Response:
        """Return the health of this process.

        The status is 200 if the database answers, otherwise 503. A missing Redis does not change the status.
        """
        return await self._probe(is_well=True)

    async def readyz(self, request: web.Request) -> web.Response:
        """Return 200 if this process serves and the database answers, otherwise 503."""
        return await self._probe(is_well=self.is_active)

    async def _probe(self, is_well: bool) -> web.Response:
        database = "ok"
        try:
            async with asyncio.timeout(5):
                await self.people_threads.run_repeatable(_ask_database)
        except (DatabaseError, TimeoutError):
            database = "away"
        status = 200 if database == "ok" and is_well else 503
        body = {"database": database, "redis": self._redis, "serves": self.is_active}
        return web.json_response(body, status=status)

    def probes(self) -> list[web.RouteDef]:
        """Return the routes of the probes."""
        return [web.get("/healthz", self.healthz), web.get("/readyz", self.readyz)]

    @property
    def is_active(self) -> bool:
        """Return True if this process serves; False if it stands by."""
        return self.election is None or self.election.is_active

    @property
    def _redis(self) -> str:
        return "ok" if self.bus.connected else "away"


def _stop_if_it_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a task of the edge failed; the process ends", error=repr(task.exception()))
        # Without this task the process would still look healthy. The supervisor restarts the process.
        raise SystemExit(1)


def _ask_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def application(edge: EdgeServer, port: int) -> web.Application:
    """Return the web application. The Host header selects the edge's own routes or a workspace."""
    own = edge_host_names(port)
    domain = "." + settings.GPUPOOL_NOTEBOOK_DOMAIN

    @web.middleware
    async def by_host(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = request.headers.get(hdrs.HOST, "").lower()  # aiohttp rejects a request with two Host headers
        if name in own:
            return await handler(request)
        label = name.removesuffix(domain)
        if label != name and WORKSPACE_LABEL_PATTERN.match(label):
            return await edge.workspaces.handle(request, label)
        return web.json_response({"detail": "this host name is not served here"}, status=421)

    app = web.Application(middlewares=[by_host], client_max_size=64 * 1024)
    app.add_routes(edge.agents.routes())
    app.add_routes([web.get("/events", edge.events.handle), *edge.probes()])
    return app


def edge_host_names(port: int) -> frozenset[str]:
    """Return the host names under which the edge serves its own routes.

    These are the edge's public name, the loopback addresses, and the portal's name. One proxy may serve the
    edge and the portal under the portal's name.
    """
    public = (urlsplit(url).netloc for url in (settings.GPUPOOL_EDGE_URL, settings.GPUPOOL_PORTAL_URL))
    return frozenset((*public, f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"))


@contextlib.asynccontextmanager
async def running_server(host: str, port: int, metrics_port: int = 0) -> AsyncIterator[EdgeServer]:
    """Run an edge on this address while the context is active. ``metrics_port`` 0 serves no metrics."""
    edge = EdgeServer(port)
    runner = web.AppRunner(
        application(edge, port),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=3.0,
        keepalive_timeout=KEEPALIVE_SECONDS,
    )
    await runner.setup()
    counters: web.AppRunner | None = None
    listener = _Listener(runner, host, port)
    try:
        if edge.election is None:
            await listener.start()
        else:

            async def stand_by() -> None:
                await listener.stop()
                await edge.agents.close()

            edge.election.on_gain, edge.election.on_loss = listener.start, stand_by
        record_process("edge")
        if metrics_port:
            counters = await _serve_metrics(edge, metrics_port)
        edge.start()
        yield edge
    finally:
        await edge.close()
        await runner.cleanup()
        if counters is not None:
            await counters.cleanup()


class _Listener:
    """The listening socket. A process that stands by does not listen, so that proxies use the other one."""

    def __init__(self, runner: web.AppRunner, host: str, port: int) -> None:
        self._runner, self._host, self._port = runner, host, port
        self._site: web.TCPSite | None = None

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        self._site = web.TCPSite(self._runner, self._host, self._port, reuse_address=True)
        await self._site.start()
        log.info("edge listens", host=self._host, port=self._port)

    async def stop(self) -> None:
        """Accept no more connections."""
        if self._site is not None:
            await self._site.stop()
            self._site = None
            log.info("edge stops listening", host=self._host, port=self._port)


async def _serve_metrics(edge: EdgeServer, port: int) -> web.AppRunner:
    async def show(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/metrics", show), *edge.probes()])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner
