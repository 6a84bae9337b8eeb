"""Hold the state of one agent's sync connection. Limit the rate of its frames, and close it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass, field

import structlog
from aiohttp import WSCloseCode, web

from agent.protocol import Desired, Observed, Refused, encode
from portal.edge.agents.database_calls import AuthenticatedHost
from portal.edge.runtime import metrics

log = structlog.get_logger(__name__)

FRAMES_PER_SECOND = 100.0
FRAME_BURST = 300.0
# When an agent connects again, its earlier connection counts as dead after this time without a pong.
PROBE_TIMEOUT_SECONDS = 3.0
CLOSE_TIMEOUT_SECONDS = 2.0
CLOSE_REFUSED = 4403  # WebSocket close code; applications define 4000 to 4999


@dataclass(eq=False)
class AgentConnection:
    """One agent's sync connection."""

    host: AuthenticatedHost
    # The first item is the current credential. A second item is a renewed credential whose receipt the agent
    # has not confirmed yet.
    credentials: list[str]
    socket: web.WebSocketResponse
    transport: asyncio.Transport | None
    last_received_at: float = field(default_factory=time.monotonic)
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)  # set when a frame is to be sent
    desired: Desired | None = None  # the newest desired state; None once it is sent
    frame_allowance: float = FRAME_BURST
    allowance_at: float = field(default_factory=time.monotonic)
    run_states: dict[str, tuple[str, bool]] = field(default_factory=dict)
    # True after the first accepted report. The report proves that the sender is the host's agent: another
    # process could have copied the credential, but its report would be rejected.
    reported: bool = False
    # The edge sends this key to the agent over this connection. A stream request with the key therefore
    # comes from the same process.
    stream_key: str = field(default_factory=lambda: secrets.token_hex(16))
    binds_streams: bool = False  # True if the agent sends the stream key in its stream requests
    # Sequence number of the last handled Observed frame. The host's lease runs from the time at which the
    # agent sent this frame.
    handled_sequence: int = 0
    # The newest report that the database has not handled, with its arrival (CLOCK_BOOTTIME, in seconds).
    unsynced: tuple[Observed, float] | None = None
    syncing: asyncio.Task[None] | None = None  # lets the database handle ``unsynced``
    missed_frames: bool = False  # True: frames were dropped while the database was away

    async def refuse(
        self, reason: str, *, retry: bool, code: int = CLOSE_REFUSED, reason_code: str = ""
    ) -> None:
        """Send a frame with the reason of the refusal, then close the connection.

        ``retry`` is True if the agent may connect again. ``code`` is the WebSocket close code.
        """
        metrics.REFUSED.inc()
        log.warning("agent refused", host=self.host.name, reason=reason, code=reason_code)
        with contextlib.suppress(ConnectionError):
            await self.socket.send_str(encode(Refused(reason=reason[:1000], retry=retry, code=reason_code)))
            await self.socket.close(code=code, message=reason.encode()[:120])

    async def end(self, code: int = WSCloseCode.GOING_AWAY) -> None:
        """Close the connection. Then abort it, in case the agent has not answered the close frame in time."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self.socket.close(code=code)
        if self.transport is not None:
            self.transport.abort()

    async def throttle(self) -> None:
        """Delay the reader while the agent sends more than FRAMES_PER_SECOND.

        The unread frames fill the buffers of TCP, and this slows the agent.
        """
        clock = time.monotonic()
        self.frame_allowance = min(
            FRAME_BURST, self.frame_allowance + (clock - self.allowance_at) * FRAMES_PER_SECOND
        )
        self.allowance_at = clock
        self.frame_allowance -= 1
        if self.frame_allowance < 0:
            metrics.THROTTLED.inc()
            await asyncio.sleep(-self.frame_allowance / FRAMES_PER_SECOND)


async def answers_ping(connection: AgentConnection) -> bool:
    """Return True if the agent answers a ping within PROBE_TIMEOUT_SECONDS."""
    asked_at = time.monotonic()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
            await connection.socket.ping()
    except (TimeoutError, ConnectionError):
        return False
    while time.monotonic() - asked_at < PROBE_TIMEOUT_SECONDS:
        if connection.last_received_at > asked_at:
            return True
        if connection.socket.closed:
            return False
        await asyncio.sleep(0.05)
    return False
