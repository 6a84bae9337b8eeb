"""Pass the traffic between agents and the edge through proxies. A proxy can be closed or disturb messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading


class EdgeProxies:
    """One TCP proxy ("gate") for each host, all in one thread. A closed gate forwards no bytes.

    While ``rng`` is set, the gates drop, duplicate, delay or reorder whole text frames of WebSockets
    in both directions.
    """

    def __init__(self, edge_port: int) -> None:
        self.edge_port = edge_port
        self.rng: random.Random | None = None
        self.frames = 0  # text frames that arrived while rng was set
        self.disturbed = 0  # how many of these frames were disturbed
        self._open: dict[str, asyncio.Event] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="gates", daemon=True).start()

    def make(self, host: str, address: str) -> int:
        """Start the gate of a host on the IP address ``address``. Return the gate's port."""
        return asyncio.run_coroutine_threadsafe(self._make(host, address), self._loop).result(10)

    def set(self, host: str, is_open: bool) -> None:
        """Open or close a gate."""
        event = self._open[host]
        self._loop.call_soon_threadsafe(event.set if is_open else event.clear)

    async def _make(self, host: str, address: str) -> int:
        event = self._open[host] = asyncio.Event()
        event.set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                await self._serve(event, reader, writer)
            writer.close()

        server = await asyncio.start_server(serve, address, 0)
        return int(server.sockets[0].getsockname()[1])

    async def _serve(
        self, event: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await event.wait()
        down_reader, down_writer = await asyncio.open_connection("127.0.0.1", self.edge_port)
        # The edge accepts only its own name in the Host header, so the gate replaces the header.
        gate_host, edge_host = (
            "Host: {}:{}".format(*writer.get_extra_info("sockname")),
            f"Host: 127.0.0.1:{self.edge_port}",
        )
        up = asyncio.create_task(
            self._pass_on(event, reader, down_writer, gate_host.encode(), edge_host.encode())
        )
        down = asyncio.create_task(self._pass_on(event, down_reader, writer, b"", b""))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
        finally:
            down_writer.close()

    async def _pass_on(
        self,
        event: asyncio.Event,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gate_host: bytes,
        edge_host: bytes,
    ) -> None:
        while True:
            # Read the head of a request or response. A body or WebSocket frames follow.
            head = await reader.readuntil(b"\r\n\r\n")
            lowered = head.lower()
            size = int(lowered.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            body = await reader.readexactly(size)
            await event.wait()
            writer.write((head.replace(gate_host, edge_host) if gate_host else head) + body)
            await writer.drain()
            if b"upgrade: websocket" in lowered:
                await self._pass_frames(event, reader, writer)

    async def _pass_frames(
        self, event: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        delayed: list[bytes] = []
        while True:
            frame, is_text = await read_frame(reader)
            await event.wait()
            for output_frame in (
                self._disturbed(frame, delayed) if is_text and self.rng else [*delayed, frame]
            ):
                writer.write(output_frame)
            if not self.rng:
                delayed.clear()
            await writer.drain()

    def _disturbed(self, frame: bytes, delayed: list[bytes]) -> list[bytes]:
        """Return the frames to forward now that ``frame`` has arrived.

        ``delayed`` is the list of the frames that are held back. This method changes the list.
        """
        assert self.rng is not None
        self.frames += 1
        draw = self.rng.random()
        self.disturbed += draw < 0.5
        if draw < 0.15:
            return []
        if draw < 0.3:
            return [frame, frame]
        if draw < 0.5:
            delayed.append(frame)
            return []
        released, delayed[:] = [*delayed], []
        self.rng.shuffle(released)
        return [frame, *released]


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Return the bytes of one WebSocket frame.

    The second value is True if the frame is a whole text message.
    """
    head = await reader.readexactly(2)
    size = head[1] & 127
    more = await reader.readexactly({126: 2, 127: 8}.get(size, 0))
    if more:
        size = int.from_bytes(more, "big")
    mask = await reader.readexactly(4 if head[1] & 128 else 0)
    return head + more + mask + await reader.readexactly(size), head[0] == 0x81
