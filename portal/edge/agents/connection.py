"""Hold the state of one agent's sync connection, limit its frame rate, and close it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass, field

import structlog
from aiohttp import WSCloseCode, web

from agent.protocol import Desired, Refused, encode
from portal.edge.agents.database_calls import AuthenticatedHost
from portal.edge.runtime import metrics

log = structlog.get_logger(__name__)

FRAMES_PER_SECOND = 100.0
FRAME_BURST = 300.0
PROBE_TIMEOUT_SECONDS = 3.0  # time in which a host's earlier connection must answer a ping
CLOSE_TIMEOUT_SECONDS = 2.0
CLOSE_REFUSED = 4403  # application-defined WebSocket close code


@dataclass(eq=False)
class AgentConnection:
    """One agent's sync connection."""

    host: AuthenticatedHost
    credentials: list[str]  # the current one, then any renewed one that the agent may not have read
    socket: web.WebSocketResponse
    transport: asyncio.Transport | None
    last_received_at: float = field(default_factory=time.monotonic)
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)  # set when a frame must be sent
    desired: Desired | None = None  # computed and not yet sent
    frame_allowance: float = FRAME_BURST
    allowance_at: float = field(default_factory=time.monotonic)
    run_states: dict[str, tuple[str, bool]] = field(default_factory=dict)
    # An accepted report proves that this is the host's agent, and not another holder of the credential.
    reported: bool = False
    # A stream request with this key comes from the same process as this connection.
    stream_key: str = field(default_factory=lambda: secrets.token_hex(16))
    binds_streams: bool = False  # True if the agent sends the stream key
    # Sequence number of the last handled Observed frame. The lease starts when the agent sends that frame.
    handled_sequence: int = 0

    async def refuse(
        self, reason: str, *, retry: bool, code: int = CLOSE_REFUSED, reason_code: str = ""
    ) -> None:
        """Send the reason of the refusal, then close with the WebSocket code ``code``."""
        metrics.REFUSED.inc()
        log.warning("agent refused", host=self.host.name, reason=reason, code=reason_code)
        with contextlib.suppress(ConnectionError):
            await self.socket.send_str(encode(Refused(reason=reason[:1000], retry=retry, code=reason_code)))
            await self.socket.close(code=code, message=reason.encode()[:120])

    async def end(self, code: int = WSCloseCode.GOING_AWAY) -> None:
        """Close the connection; abort it if the agent does not take the close frame in time."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self.socket.close(code=code)
        if self.transport is not None:
            self.transport.abort()

    async def throttle(self) -> None:
        """Delay the reader if frames exceed FRAMES_PER_SECOND; TCP then slows the agent."""
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
    """Return True if the other end answers a ping."""
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
