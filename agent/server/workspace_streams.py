"""Relays the traffic of workspaces (notebooks and jobs that serve HTTP) between the edge and the runs.

Some connections to the edge are dialled in advance and stay idle until the edge uses them for a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import aiohttp

from agent.host.shutdown import cancel_tasks
from agent.isolation.workspace_socket import SocketMissing, socket_path
from agent.protocol import FRAMES_DOWN, STREAM_KEY_HEADER, STREAM_PATH, ProtocolError, StreamOpen, decode

log = logging.getLogger("agent.server.workspace_streams")

CHUNK_BYTES = 1 << 16
HEARTBEAT_SECONDS = 20.0
DIAL_TIMEOUT_SECONDS = 20.0
RETRY_SECONDS = 1.0
MAX_STREAMS = 256
CLOSE_NOT_READY = 4404  # WebSocket close codes of this application
CLOSE_PROTOCOL_ERROR = 4400


class WorkspaceStreams:
    """The workspace connections of one agent.

    A number of connections are kept idle. When the edge begins to use one, another one is dialled at once.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        edge: str,
        credential: Callable[[], str],
        workspace_socket: Callable[[str], Path | None],
    ) -> None:
        self._session = session
        self._url = edge + STREAM_PATH
        self._credential = credential
        self._workspace_socket = workspace_socket
        self._idle: set[asyncio.Task[None]] = set()
        self._used: set[asyncio.Task[None]] = set()
        self._wanted = 0
        self._key = ""

    def keep(self, count: int, key: str) -> None:
        """Keep ``count`` idle connections from now on.

        New connections are dialled with ``key``, the current stream key.
        """
        self._key = key
        self._wanted = max(0, min(count, MAX_STREAMS))
        while len(self._idle) < self._wanted:
            self._dial(0)
        for task in list(self._idle)[self._wanted :]:
            task.cancel()

    def rest(self) -> None:
        """Stop dialling until ``keep`` is called again. Existing connections stay."""
        self._wanted = 0

    async def close(self) -> None:
        """Close all connections."""
        self._wanted = 0
        await cancel_tasks([*self._idle, *self._used])

    def _dial(self, after: float) -> None:
        task = asyncio.create_task(self._serve(after))
        self._idle.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        failed = not task.cancelled() and task.exception() is not None
        if failed:
            log.info("stream: %s", task.exception())
        was_idle = task in self._idle
        self._idle.discard(task)
        self._used.discard(task)
        if was_idle and len(self._idle) < self._wanted:
            self._dial(RETRY_SECONDS)

    def _begin_use(self) -> None:
        task = asyncio.current_task()
        if task is not None and task in self._idle:
            self._idle.discard(task)
            self._used.add(task)
            if len(self._idle) < self._wanted:
                self._dial(0)

    async def _serve(self, after: float) -> None:
        await asyncio.sleep(after)
        headers = {"Authorization": f"Bearer {self._credential()}", STREAM_KEY_HEADER: self._key}
        try:
            dialled = self._session.ws_connect(
                self._url, headers=headers, heartbeat=HEARTBEAT_SECONDS, max_msg_size=4 << 20
            )
            # Limit the time: a dial that hangs would count as an idle connection forever.
            async with asyncio.timeout(DIAL_TIMEOUT_SECONDS):
                connection = await dialled
            async with connection as edge:
                opened = await self._opened(edge)
                if opened is not None:
                    self._begin_use()
                    await self._join(edge, opened)
        except (aiohttp.ClientError, OSError) as error:
            log.info("stream: %s", error or type(error).__name__)

    async def _opened(self, edge: aiohttp.ClientWebSocketResponse) -> StreamOpen | None:
        message = await edge.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            return None
        try:
            frame = decode(message.data, FRAMES_DOWN)
        except ProtocolError as error:
            await edge.close(code=CLOSE_PROTOCOL_ERROR, message=str(error).encode()[:120])
            return None
        if not isinstance(frame, StreamOpen):
            log.warning("stream: refused: %s", getattr(frame, "reason", frame.kind))
            return None
        return frame

    async def _join(self, edge: aiohttp.ClientWebSocketResponse, opened: StreamOpen) -> None:
        socket = self._workspace_socket(opened.run)
        try:
            if socket is None:
                raise SocketMissing(f"run {opened.run} has no workspace here")
            with socket_path(socket) as path:
                reader, writer = await asyncio.open_unix_connection(path)
        except (SocketMissing, OSError) as error:
            await edge.close(code=CLOSE_NOT_READY, message=str(error).encode()[:120])
            return
        try:
            await _relay(edge, reader, writer)
        finally:
            writer.close()
            await edge.close()


async def _relay(
    edge: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Relay bytes in both directions until either side closes.

    Each direction waits until its receiver has taken the bytes, and then reads more. So no buffer grows
    without limit.
    """
    directions = [
        asyncio.create_task(_relay_to_run(edge, writer)),
        asyncio.create_task(_relay_to_edge(edge, reader)),
    ]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _relay_to_run(edge: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        async for message in edge:
            if message.type is aiohttp.WSMsgType.BINARY:
                writer.write(message.data)
                await writer.drain()


async def _relay_to_edge(edge: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(CHUNK_BYTES):
            await edge.send_bytes(chunk)
