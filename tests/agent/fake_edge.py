"""Provide a fake edge for agent tests. It uses the real protocol over real connections."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web

from agent.protocol import (
    FRAMES_UP,
    STREAM_KEY_HEADER,
    VERSION,
    Desired,
    DiagnosticWanted,
    GeometryWanted,
    Health,
    JoinAnswer,
    JoinRequest,
    LogChunk,
    Observed,
    Proof,
    Refused,
    RenewAnswer,
    RenewRequest,
    RunSeen,
    RunWanted,
    SampleBatch,
    StreamOpen,
    decode,
    encode,
    parse,
)

TOKEN = "join-me"
# Long enough for a busy machine. Shorter than the time limit of a test, so that a failure shows the last
# frame.
PATIENCE_SECONDS = 100.0


@dataclass
class FakeEdge:
    """A fake edge with the desired state (`wanted`) and all frames that it received from agents."""

    lease_seconds: float = 30.0
    poll_seconds: float = 0.3
    streams_wanted: int = 0
    stream_key: str = ""
    stream_keys: list[str] = field(default_factory=list)  # the stream keys that agents sent
    wanted: dict[str, RunWanted] = field(default_factory=dict)
    diagnostics: list[DiagnosticWanted] = field(default_factory=list)
    geometries: list[GeometryWanted] = field(default_factory=list)
    stray_action: str = "report"
    commits: bool = True  # True: the edge commits received batches
    committed: int = 0
    seconds_ahead: float = 0.0  # by how much the clock of the server is ahead of the clock of the host
    silent: bool = False  # True: the edge receives frames and sends none
    observed: list[Observed] = field(default_factory=list)
    batches: list[SampleBatch] = field(default_factory=list)
    log_bytes: dict[str, bytes] = field(default_factory=dict)
    health: list[Health] = field(default_factory=list)
    challenge: str = ""  # text that agents must sign
    proofs: list[Proof] = field(default_factory=list)
    renewals: list[RenewRequest] = field(default_factory=list)
    joins: list[JoinRequest] = field(default_factory=list)
    credentials: set[str] = field(default_factory=set)
    keys_count: bool = True  # False: the edge rejects every renewal, as if it had lost the hosts' public keys
    sync_sockets: set[web.WebSocketResponse] = field(default_factory=set)
    idle_streams: list[web.WebSocketResponse] = field(default_factory=list)
    rejected_sync_connections: int = 0  # number of sync connections with an unknown credential
    rejected_streams: int = 0
    url: str = ""
    _runner: web.AppRunner | None = None
    _answers: int = 0

    async def start(self, port: int = 0) -> None:
        """Listen on a loopback port."""
        app = web.Application()
        app.add_routes(
            [
                web.post("/agent/v1/join", self._join),
                web.post("/agent/v1/renew", self._renew),
                web.get("/agent/v1/sync", self._sync),
                web.get("/agent/v1/stream", self._stream),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        assert site._server is not None
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]

    async def stop(self) -> None:
        """Close every connection and stop listening."""
        for socket in [*self.sync_sockets, *self.idle_streams]:
            await socket.close()
        self.idle_streams.clear()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def want(self, wanted: RunWanted) -> None:
        """Add this run to the desired state and push the state."""
        self.wanted[wanted.run] = wanted
        await self.push()

    async def change(self, run: str, **fields: object) -> None:
        """Change the desired state of a run and push the state."""
        await self.want(dataclasses.replace(self.wanted[run], **fields))  # type: ignore[arg-type]

    async def drop(self, run: str) -> None:
        """Remove the run from the desired state and push the state."""
        del self.wanted[run]
        await self.push()

    def desired(self) -> Desired:
        """Return the current desired state."""
        return Desired(
            version=VERSION,
            host="h1",
            lease_seconds=self.lease_seconds,
            runs=list(self.wanted.values()),
            committed_sequence=self.committed,
            streams=self.streams_wanted,
            stream_key=self.stream_key,
            poll_seconds=self.poll_seconds,
            answers=self._answers,
            diagnostics=self.diagnostics,
            geometries=self.geometries,
            stray_action=self.stray_action,
            challenge=self.challenge,
            server_time=time.time() + self.seconds_ahead,
        )

    async def push(self) -> None:
        """Send the desired state to every connected agent."""
        if not self.silent:
            for socket in list(self.sync_sockets):
                await socket.send_str(encode(self.desired()))

    async def send(self, desired: Desired) -> None:
        """Send exactly this frame to every connected agent."""
        for socket in list(self.sync_sockets):
            await socket.send_str(encode(desired))

    def seen(self, run: str) -> RunSeen | None:
        """Return the state of the run in the newest frame, or None."""
        return (
            next((seen for seen in self.observed[-1].runs if seen.run == run), None)
            if self.observed
            else None
        )

    def log(self, run: str) -> str:
        """Return the run's log received so far."""
        return self.log_bytes.get(run, b"").decode()

    async def until(self, happened: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until `happened` returns a true value. On timeout, fail with the agent's last frame."""
        ends = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > ends:
                raise AssertionError(f"did not happen in {seconds} s; last: {self.observed[-1:]}")
            await asyncio.sleep(0.02)

    async def after_reports(self, count: int) -> None:
        """Wait until agents have sent `count` more reports and the edge has answered each of them."""
        heard = len(self.observed)
        await self.until(lambda: len(self.observed) > heard + count)

    async def until_state(self, run: str, state: str, seconds: float = PATIENCE_SECONDS) -> RunSeen:
        """Wait until the agent reports the run in this state."""

        def there() -> bool:
            seen = self.seen(run)
            return seen is not None and seen.state == state

        await self.until(there, seconds)
        seen = self.seen(run)
        assert seen is not None
        return seen

    async def open_stream(self, run: str) -> web.WebSocketResponse:
        """Take an idle stream and connect it to the run."""
        await self.until(lambda: self.idle_streams)
        socket = self.idle_streams.pop(0)
        await socket.send_str(encode(StreamOpen(run=run)))
        return socket

    async def _join(self, request: web.Request) -> web.Response:
        asked = parse(JoinRequest, await request.json())
        self.joins.append(asked)
        if asked.token != TOKEN:
            return web.json_response({"error": "this join token is not known"}, status=403)
        credential = f"credential-{len(self.joins)}"
        self.credentials.add(credential)
        return web.json_response(dataclasses.asdict(JoinAnswer(credential, time.time() + 3600, asked.host)))

    async def _renew(self, request: web.Request) -> web.Response:
        asked = parse(RenewRequest, await request.json())
        self.renewals.append(asked)
        if not asked.challenge:
            return web.json_response(dataclasses.asdict(RenewAnswer(challenge="sign me")))
        if not asked.signature or not self.keys_count:
            return web.json_response({"reason": "signature: missing"}, status=403)
        credential = f"renewed-{len(self.renewals)}"
        self.credentials.add(credential)
        return web.json_response(dataclasses.asdict(RenewAnswer("", credential, time.time() + 3600)))

    def _known(self, request: web.Request) -> bool:
        return request.headers.get("Authorization", "").removeprefix("Bearer ") in self.credentials

    async def _sync(self, request: web.Request) -> web.StreamResponse:
        if not self._known(request):
            self.rejected_sync_connections += 1
            return web.json_response({"error": "unknown credential"}, status=401)
        socket = web.WebSocketResponse(max_msg_size=16 << 20)
        await socket.prepare(request)
        self._answers = 0
        self.sync_sockets.add(socket)
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await self._hear(socket, decode(message.data, FRAMES_UP))
        finally:
            self.sync_sockets.discard(socket)
        return socket

    async def _hear(self, socket: web.WebSocketResponse, frame: object) -> None:
        if isinstance(frame, Observed):
            self.observed.append(frame)
            self._answers = frame.sequence
            if not self.silent:
                await socket.send_str(encode(self.desired()))
        elif isinstance(frame, SampleBatch):
            self.batches.append(frame)
            if self.commits:
                self.committed = max(self.committed, frame.sequence)
        elif isinstance(frame, LogChunk):
            kept = self.log_bytes.get(frame.run, b"")
            self.log_bytes[frame.run] = kept[: frame.offset] + frame.text.encode()
        elif isinstance(frame, Proof):
            self.proofs.append(frame)
        elif isinstance(frame, Health):
            self.health.append(frame)

    async def refuse(self, reason: str, *, retry: bool) -> None:
        """Send a refusal to every connected agent."""
        for socket in list(self.sync_sockets):
            await socket.send_str(encode(Refused(reason, retry)))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if not self._known(request):
            self.rejected_streams += 1
            return web.json_response({"error": "unknown credential"}, status=401)
        socket = web.WebSocketResponse(max_msg_size=16 << 20)
        await socket.prepare(request)
        self.stream_keys.append(request.headers.get(STREAM_KEY_HEADER, ""))
        self.idle_streams.append(socket)
        while not socket.closed:
            await asyncio.sleep(0.05)
        return socket
