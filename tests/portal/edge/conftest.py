"""Provide an edge on its own port, a minimal agent, and a notebook that the edge reaches through the agent.

``tests/e2e/test_notebook_through_edge.py`` tests the edge with the real agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import secrets
import socket as sockets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
from aiohttp import web
from django.db import connection
from django.utils import timezone

from agent import protocol
from portal.edge.server import EdgeServer, running_server
from portal.models import EntryCode, User, WorkspaceOrigin
from scheduler import services
from scheduler.models import Host, Run, Workload
from scheduler.state.states import RunState, WorkloadState
from scheduler.sync import agent_api
from tests.waiting import DEADLINE_SECONDS, until
from tests.world import World, build_world

T = TypeVar("T")


async def run_orm(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Return the result of an ORM call that runs in a thread."""

    def run() -> T:
        try:
            return call(*args, **kwargs)
        finally:
            connection.close()

    return await asyncio.to_thread(run)


def free_port() -> int:
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class EdgeSite:
    """A running edge and the means to reach it."""

    edge: EdgeServer
    port: int
    world: World
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def name(self, label: str) -> str:
        return f"{label}.localhost:{self.port}"


@pytest.fixture
async def edge_site(transactional_db: None, settings: Any) -> AsyncIterator[EdgeSite]:
    """Write the organisation of tests/world.py at the current time, and start an edge in this process."""
    port = free_port()
    settings.GPUPOOL_EDGE_URL = f"http://127.0.0.1:{port}"
    settings.GPUPOOL_NOTEBOOK_DOMAIN = f"localhost:{port}"
    world = await run_orm(build_world, timezone.now())
    async with (
        running_server("127.0.0.1", port) as edge,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        await until(lambda: edge.bus.connected)
        yield EdgeSite(edge, port, world, session)


def give_credential(host: Host) -> str:
    """Return a new credential of the host, issued like the credential of an agent."""
    now = timezone.now()
    token = services.issue_join_token(host, now=now)
    request = protocol.JoinRequest(
        version=1, token=token, host=host.name, instance=host.agent_instance, boot_id=host.boot_id
    )
    return agent_api.join(request, now).credential


def observed(sequence: int = 1, host: str = "alpha", **changes: Any) -> protocol.Observed:
    inventory = protocol.Inventory(
        gpus=[], cpu_milli=1000, memory_mib=1000, isolation="plain", simulated=True
    )
    values: dict[str, Any] = {
        "boot_id": f"boot-of-{host}",
        "instance": f"instance-of-{host}",
        "runs": [],
        "inventory": inventory,
    }
    return protocol.Observed(
        version=protocol.VERSION, agent_version="1", sequence=sequence, **{**values, **changes}
    )


@dataclass
class SmallAgent:
    """A minimal agent that sends and reads single frames of the protocol."""

    edge_site: EdgeSite
    host: Host
    credential: str
    socket: aiohttp.ClientWebSocketResponse | None = None
    run_sockets: dict[str, Path] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    stream_key: str = ""  # from the last Desired frame
    received: asyncio.Queue[Any] | None = None  # frames received since `serve`

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.credential}"}

    async def serve(self, *runs: protocol.RunSeen, streams: int = 0) -> None:
        """Send the first report, start to collect all frames, and offer `streams` byte streams."""
        await self.connect()
        await self.send(observed(runs=list(runs), binds_streams=True))
        self.stream_key = (await self.receive()).stream_key
        self.tasks.append(asyncio.create_task(self._listen()))
        self.offer_streams(streams)
        await until(lambda: self.edge_site.edge.agents.streams.idle_of(self.host.pk) == streams)

    async def _listen(self) -> None:
        assert self.socket is not None
        self.received = asyncio.Queue()
        async for message in self.socket:
            self.received.put_nowait(protocol.decode(message.data, protocol.FRAMES_DOWN))

    async def connect(self, **more: Any) -> aiohttp.ClientWebSocketResponse:
        url = self.edge_site.url + protocol.SYNC_PATH
        close = aiohttp.ClientWSTimeout(ws_close=0.5)  # type: ignore[call-arg]
        connecting = self.edge_site.session.ws_connect(
            url, headers=self.headers, max_msg_size=1 << 24, timeout=close, **more
        )
        self.socket = await connecting
        return self.socket

    async def connect_with_key(self) -> aiohttp.ClientWebSocketResponse:
        """Connect again as the process that had the connection with ``stream_key``."""
        url, key = self.edge_site.url + protocol.SYNC_PATH, {protocol.STREAM_KEY_HEADER: self.stream_key}
        self.socket = await self.edge_site.session.ws_connect(url, headers={**self.headers, **key})
        return self.socket

    async def send(self, frame: Any) -> None:
        assert self.socket is not None
        await self.socket.send_str(frame if isinstance(frame, str) else protocol.encode(frame))

    async def receive(self, seconds: float = DEADLINE_SECONDS) -> Any:
        """Return the next frame from the edge."""
        assert self.socket is not None
        if self.received is not None:
            return await asyncio.wait_for(self.received.get(), seconds)
        message = await self.socket.receive(timeout=seconds)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return protocol.decode(message.data, protocol.FRAMES_DOWN)

    async def receive_answer(self, sequence: int) -> protocol.Desired:
        """Return the edge's answer to the report ``sequence``. Skips other frames."""
        while True:
            frame = await self.receive()
            assert isinstance(frame, protocol.Desired), frame
            if frame.answers == sequence:
                return frame

    async def receive_refusal(self) -> protocol.Refused:
        while True:
            frame = await self.receive()
            if isinstance(frame, protocol.Refused):
                return frame

    def offer_streams(self, count: int) -> None:
        self.tasks += [asyncio.create_task(self._stream()) for _ in range(count)]

    async def _stream(self) -> None:
        async with await self._connected_stream() as edge:
            message = await edge.receive()
            self.offer_streams(1)  # like a real agent, replace the stream, even if the edge did not use it
            if message.type is not aiohttp.WSMsgType.TEXT:
                return
            opened = protocol.decode(message.data, protocol.FRAMES_DOWN)
            if not isinstance(opened, protocol.StreamOpen):
                return
            reader, writer = await asyncio.open_unix_connection(self.run_sockets[opened.run])
            down = asyncio.create_task(_forward(reader, edge))
            with contextlib.suppress(ConnectionError):
                async for message in edge:
                    writer.write(message.data)
                    await writer.drain()
            writer.close()
            down.cancel()

    async def _connected_stream(self) -> aiohttp.ClientWebSocketResponse:
        """Return a byte stream to the edge. Retries while the edge answers 503."""
        while True:
            headers = {**self.headers, protocol.STREAM_KEY_HEADER: self.stream_key}
            try:
                return await self.edge_site.session.ws_connect(
                    self.edge_site.url + protocol.STREAM_PATH, headers=headers
                )
            except aiohttp.WSServerHandshakeError as error:
                if error.status != 503:
                    raise
                await asyncio.sleep(0.2)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.socket is not None:
            await self.socket.close()


async def _forward(reader: asyncio.StreamReader, edge: aiohttp.ClientWebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            await edge.send_bytes(piece)
        await edge.close()


@pytest.fixture
async def agent(edge_site: EdgeSite) -> AsyncIterator[SmallAgent]:
    """Yield an agent of host alpha that is not connected yet."""
    host = edge_site.world.hosts["alpha"]
    new_agent = SmallAgent(edge_site, host, await run_orm(give_credential, host))
    yield new_agent
    await new_agent.close()


# -- a notebook behind the agent -----------------------------------------------------------------------------


def running_notebook(world: World, owner: User, host: Host, name: str = "probe") -> Run:
    """Create the rows of a running notebook that is ready."""
    now = timezone.now()
    workload = Workload.objects.create(
        kind="notebook",
        type="interactive",
        name=name,
        pool=world.shared,
        project=world.vision.project,
        owner=owner,
        units=1,
        max_runtime_seconds=3600,
        predicted_seconds=3600,
        state=WorkloadState.RUNNING,
        attempt=1,
        submitted_at=now,
        queued_at=now,
        started_at=now,
    )
    WorkspaceOrigin.objects.create(workload=workload, label=f"w{secrets.token_hex(12)}", created_at=now)
    generation = 1 + Run.objects.filter(host=host).count()
    return Run.objects.create(
        workload=workload,
        attempt=1,
        host=host,
        generation=generation,
        state=RunState.RUNNING,
        placed_at=now,
        running_at=now,
        ready_at=now,
    )


def entry_code(run: Run, user: User, session_key: str = "", seconds: float = 60) -> str:
    """Create a one-time code, as `portal.services.work.workspaces.open_workspace` does."""
    code, now = secrets.token_urlsafe(32), timezone.now()
    EntryCode.objects.create(
        code_hash=hashlib.sha256(code.encode()).hexdigest(),
        user=user,
        workload=run.workload,
        session_key_hash=hashlib.sha256(session_key.encode()).hexdigest() if session_key else "",
        created_at=now,
        expires_at=now + dt.timedelta(seconds=seconds),
        session_generation=User.objects.get(pk=user.pk).session_generation,
    )
    return code


@dataclass
class Notebook:
    """A run with a small server behind its Unix socket. The server returns each request that reaches it."""

    edge_site: EdgeSite
    run: Run
    owner: User
    label: str
    secret: str

    @property
    def name(self) -> str:
        return self.edge_site.name(self.label)

    @property
    def origin(self) -> str:
        return f"http://{self.name}"

    async def get(self, path: str, cookie: str = "", **headers: str) -> aiohttp.ClientResponse:
        return await self.ask("GET", path, cookie, headers)

    async def ask(
        self, method: str, path: str, cookie: str = "", headers: dict[str, str] | None = None, **more: Any
    ) -> aiohttp.ClientResponse:
        """Send a request as a browser does: to loopback, with the Host header of the workspace."""
        from yarl import URL

        sent = {
            "Host": self.name,
            **({"Cookie": f"__Host-gpupool={cookie}"} if cookie else {}),
            **(headers or {}),
        }
        url = URL(self.edge_site.url + path, encoded=True)
        return await self.edge_site.session.request(method, url, headers=sent, allow_redirects=False, **more)

    async def enter(self, session_key: str = "", user: User | None = None) -> str:
        """Enter the workspace, by default as its owner. Return the cookie."""
        code = await run_orm(entry_code, self.run, user or self.owner, session_key)
        answer = await self.get(f"/.gpupool/enter?code={code}")
        assert answer.status == 303, await answer.text()
        return answer.cookies["__Host-gpupool"].value

    async def socket(self, cookie: str, path: str = "/echo", **more: Any) -> aiohttp.ClientWebSocketResponse:
        sent = {"Host": self.name, "Origin": self.origin, "Cookie": f"__Host-gpupool={cookie}"}
        return await self.edge_site.session.ws_connect(
            self.edge_site.url + path, headers=sent, max_msg_size=1 << 27, **more
        )


@pytest.fixture
async def upstream(tmp_path: Path) -> AsyncIterator[Path]:
    """Yield the Unix socket of a server that returns each request that reaches it."""
    path = tmp_path / "run.sock"
    runner = web.AppRunner(_echo_application(), access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    yield path
    await runner.cleanup()


PIECE = 65536
PIECES_WRITTEN: dict[str, int] = {}  # number of pieces that /large?name=... has written


def _echo_application() -> web.Application:
    async def describe_request(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        answer = web.json_response(
            {
                "method": request.method,
                "target": request.raw_path,
                "headers": [[name, value] for name, value in request.headers.items()],
                "length": len(body),
                "digest": hashlib.sha256(body).hexdigest(),
            }
        )
        answer.headers.add("Set-Cookie", "_xsrf=2|abc; Path=/; Domain=localhost")
        answer.headers.add("Set-Cookie", "__Host-gpupool=stolen; Path=/; Secure")
        answer.headers["X-Gpupool-Inside"] = "1"
        return answer

    async def large(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(int(request.query["pieces"])):
            await response.write(b"x" * PIECE)
            PIECES_WRITTEN[request.query.get("name", "")] = number + 1
        return response

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for number in range(600):
                await response.write(f"{number}\n".encode())
                await asyncio.sleep(0.1)
        return response

    async def breaks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return response

    async def echo(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v1.kernel.websocket.jupyter.org"], max_msg_size=1 << 27)
        await socket.prepare(request)
        async for message in socket:
            if message.data == "headers":
                await socket.send_json(dict(request.headers))
            elif message.data == "bye":
                await socket.close(code=4321, message=b"as asked")
            elif message.type is aiohttp.WSMsgType.TEXT:
                await socket.send_str(message.data)
            else:
                await socket.send_bytes(message.data)
        return socket

    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/echo", echo)
    app.router.add_get("/large", large)
    app.router.add_get("/slow", slow)
    app.router.add_get("/breaks", breaks)
    app.router.add_route("*", "/{rest:.*}", describe_request)
    return app


@pytest.fixture
async def notebook(edge_site: EdgeSite, agent: SmallAgent, upstream: Path) -> Notebook:
    """Return a running notebook of a member of team vision, reached over the streams of the agent."""
    owner = edge_site.world.vision.member
    run = await run_orm(running_notebook, edge_site.world, owner, agent.host)
    label = await run_orm(lambda: run.workload.workspace_origin.label)
    agent.run_sockets[str(run.public_id)] = upstream
    await agent.serve(protocol.RunSeen(str(run.public_id), run.generation, "running", ready=True), streams=3)
    return Notebook(edge_site, run, owner, label, agent_api.workspace_secret(run.public_id))
