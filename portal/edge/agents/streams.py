"""Carry workspace traffic over streams. A stream is a connection that an agent has opened to the edge.

This module keeps the idle streams of each host. It makes each stream look like an asyncio transport, so that
an ordinary HTTP client can use it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from aiohttp import ClientConnectorError, WSCloseCode, WSMsgType, web
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import BaseConnector

from agent.protocol import Refused, StreamOpen, encode

MAX_IDLE_STREAMS_PER_HOST = 64
MAX_CHUNK_BYTES = 64 * 1024  # maximum size of one frame
WRITE_HIGH_WATER_BYTES = 256 * 1024  # the writer is paused while more bytes are unsent
READY_STREAMS_PER_HOST = 6  # enough for one browser, which opens up to six connections
OPEN_TIMEOUT_SECONDS = 10.0


class StreamUnavailable(Exception):
    """The host's agent provided no connection in time."""


class AgentStream(asyncio.Transport):
    """A connection to the socket of a run, carried by a WebSocket that an agent opened.

    A new stream is idle: it is not connected to a run yet. Written bytes are buffered until the agent takes
    them. If more than WRITE_HIGH_WATER_BYTES are buffered, the writer is paused. While the reader is paused,
    no frames are read, so a slow reader slows only its own stream.
    """

    def __init__(self, socket: web.WebSocketResponse, transport: asyncio.Transport | None = None) -> None:
        super().__init__()
        self._socket = socket
        self._transport = transport  # the TCP transport below the WebSocket
        self._protocol: asyncio.BaseProtocol | None = None
        self._unsent = bytearray()
        self._writer_paused = False
        self._to_send = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._closing = False
        self._connection_lost_called = False

    @property
    def idle(self) -> bool:
        return self._protocol is None and not self._closing

    async def forward(self) -> None:
        """Forward bytes in both directions until one side closes.

        The request handler of the agent's WebSocket awaits this method.
        """
        sender = asyncio.create_task(self._send())
        try:
            await self._receive()
        finally:
            sender.cancel()
            self._lost()

    async def open(self, run: str) -> None:
        """Ask the agent to connect this stream to the socket of ``run``."""
        await self._socket.send_str(encode(StreamOpen(run=run)))

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass the received bytes to ``protocol`` from now on."""
        self._protocol = protocol
        protocol.connection_made(self)
        if self._closing:
            self._lost()

    async def _receive(self) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or self._protocol is None:
                await self._socket.close(
                    code=WSCloseCode.PROTOCOL_ERROR,
                    message=b"binary frames only, and only after an open request",
                )
                return
            if self._connection_lost_called:
                return
            self._protocol.data_received(message.data)  # type: ignore[attr-defined]
            await self._may_read.wait()

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await self._to_send.wait()
                while self._unsent:
                    piece = bytes(self._unsent[:MAX_CHUNK_BYTES])
                    del self._unsent[: len(piece)]
                    await self._socket.send_bytes(piece)
                    if self._writer_paused and len(self._unsent) <= WRITE_HIGH_WATER_BYTES // 4:
                        self._writer_paused = False
                        if self._protocol is not None:
                            self._protocol.resume_writing()
                self._to_send.clear()
                if self._closing:
                    await self._socket.close()
                    return

    def _lost(self) -> None:
        self._closing = True
        self._may_read.set()
        if self._protocol is not None and not self._connection_lost_called:
            self._connection_lost_called = True
            self._protocol.connection_lost(None)

    # The following methods implement asyncio.Transport.

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or not data:
            return
        self._unsent += data
        self._to_send.set()
        if len(self._unsent) > WRITE_HIGH_WATER_BYTES and not self._writer_paused:
            self._writer_paused = True
            if self._protocol is not None:
                self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Send the buffered bytes, then close."""
        if not self._closing:
            self._closing = True
            self._may_read.set()
            self._to_send.set()

    def abort(self) -> None:
        self._unsent.clear()
        self.close()

    def cut(self) -> None:
        """Abort at once. No more bytes are sent in either direction."""
        self._unsent.clear()
        self._lost()
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def is_reading(self) -> bool:
        return self._may_read.is_set() and not self._closing

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol


class AgentStreamPool:
    """The streams of each host, and the requests that wait for a stream."""

    def __init__(self, request_streams: Callable[[int], None]) -> None:
        self._all: dict[int, set[AgentStream]] = defaultdict(set)
        self._idle: dict[int, deque[AgentStream]] = defaultdict(deque)
        self._waiting: dict[int, deque[asyncio.Future[AgentStream]]] = defaultdict(deque)
        self._request_streams = request_streams

    def desired_idle_count(self, host: int, notebooks: int) -> int:
        """Return the number of idle streams that the agent of ``host`` should keep open.

        ``notebooks`` is the number of notebooks on the host. Each request that waits for a stream adds one.
        """
        ready = READY_STREAMS_PER_HOST if notebooks else 0
        return min(MAX_IDLE_STREAMS_PER_HOST, ready + len(self._waiting[host]))

    def idle_of(self, host: int) -> int:
        return len(self._idle[host])

    def drop_idle(self, host: int) -> None:
        """Close the idle streams of a host. The agent opens new ones."""
        for stream in self._idle.pop(host, ()):
            stream.close()

    def hosts(self) -> list[int]:
        """Return the ids of the hosts that have a stream, idle or in use."""
        return [host for host, streams in self._all.items() if streams]

    def cut(self, host: int) -> None:
        """Cut all streams of a host, idle or in use.

        Call this method when the process that opened the streams is no longer the host's agent.
        """
        self._idle.pop(host, None)
        for stream in list(self._all.get(host, ())):
            stream.cut()

    async def serve(
        self, host: int, socket: web.WebSocketResponse, transport: asyncio.Transport | None = None
    ) -> None:
        """Add a new stream of an agent to the pool, and forward its bytes until it ends.

        ``transport`` is the TCP transport below ``socket``.
        """
        if len(self._idle[host]) >= MAX_IDLE_STREAMS_PER_HOST:
            await socket.send_str(
                encode(
                    Refused(
                        f"idle streams of this host: at most {MAX_IDLE_STREAMS_PER_HOST} are allowed",
                        retry=True,
                    )
                )
            )
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER)
            return
        stream = AgentStream(socket, transport)
        self._all[host].add(stream)
        self._offer(host, stream)
        try:
            await stream.forward()
        finally:
            self._all[host].discard(stream)
            with contextlib.suppress(ValueError):
                self._idle[host].remove(stream)

    def _offer(self, host: int, stream: AgentStream) -> None:
        waiting = self._waiting[host]
        while waiting:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(stream)
                return
        self._idle[host].append(stream)

    async def take(self, host: int, run: str) -> AgentStream:
        """Return a stream to ``run`` on ``host``: an idle stream if there is one, otherwise a new one.

        Raises StreamUnavailable if the agent opens no stream in time.
        """
        stream = self._pop_idle(host) or await self._wait_for_stream(host)
        try:
            await stream.open(run)
        except ConnectionError as error:
            raise StreamUnavailable(f"the connection to the host broke: {error}") from None
        return stream

    def _pop_idle(self, host: int) -> AgentStream | None:
        idle = self._idle[host]
        while idle:
            stream = idle.popleft()
            if stream.idle:
                return stream
        return None

    async def _wait_for_stream(self, host: int) -> AgentStream:
        future: asyncio.Future[AgentStream] = asyncio.get_running_loop().create_future()
        self._waiting[host].append(future)
        self._request_streams(host)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_SECONDS):
                return await self._await_stream(host, future)
        except TimeoutError:
            raise StreamUnavailable(
                f"the host provided no connection within {OPEN_TIMEOUT_SECONDS:.0f} s"
            ) from None
        finally:
            with contextlib.suppress(ValueError):
                self._waiting[host].remove(future)

    async def _await_stream(self, host: int, future: asyncio.Future[AgentStream]) -> AgentStream:
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._offer(host, future.result())  # a stream arrived too late for this request
            raise


class AgentConnector(BaseConnector):
    """A connector with which an aiohttp client sends its requests to runs.

    It opens a stream to the run for each address ``http://<run>.<host id>/...``.
    """

    def __init__(self, pool: AgentStreamPool) -> None:
        super().__init__(limit=0, limit_per_host=0, keepalive_timeout=20)
        self._pool = pool

    async def _create_connection(
        self, req: ClientRequest, traces: list[Any], timeout: Any
    ) -> ResponseHandler:
        run, _, host = (req.url.raw_host or "").partition(".")
        try:
            stream = await self._pool.take(int(host), run)
        except StreamUnavailable as error:
            raise ClientConnectorError(req.connection_key, OSError(str(error))) from error
        protocol: ResponseHandler = self._factory()
        stream.attach(protocol)
        return protocol
