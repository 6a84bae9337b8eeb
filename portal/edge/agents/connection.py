"""The sync connection of one agent: its state, its frame rate, its end."""

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
PROBE_TIMEOUT_SECONDS = 3.0  # how long an earlier connection has to prove that it is alive
CLOSE_TIMEOUT_SECONDS = 2.0
CLOSE_REFUSED = 4403  # WebSocket close codes of our own


@dataclass(eq=False)
class AgentConnection:
    """One agent's sync connection."""

    host: AuthenticatedHost
    credentials: list[str]  # the one it came with, then the one that was sent to it since
    socket: web.WebSocketResponse
    transport: asyncio.Transport | None
    heard: float = field(default_factory=time.monotonic)
    due: asyncio.Event = field(default_factory=asyncio.Event)  # something is to be sent
    desired: Desired | None = None  # computed and not yet sent
    frame_allowance: float = FRAME_BURST
    allowance_at: float = field(default_factory=time.monotonic)
    run_states: dict[str, tuple[str, bool]] = field(default_factory=dict)
    reported: bool = (
        False  # a report was taken in: it is the host's agent, not only somebody who has its credential
    )
    stream_key: str = field(
        default_factory=lambda: secrets.token_hex(16)
    )  # shown by who is at the other end of this connection
    binds_streams: bool = False  # its agent knows of that
    answered: int = (
        0  # sequence of the Observed handled last: the agent's lease runs from when it sent that one
    )

    async def refuse(self, reason: str, *, retry: bool, code: int = CLOSE_REFUSED) -> None:
        """Say no in words, then close."""
        metrics.REFUSED.inc()
        log.warning("agent refused", host=self.host.name, reason=reason)
        with contextlib.suppress(ConnectionError):
            await self.socket.send_str(encode(Refused(reason=reason[:1000], retry=retry)))
            await self.socket.close(code=code, message=reason.encode()[:120])

    async def end(self, code: int = WSCloseCode.GOING_AWAY) -> None:
        """Close, without waiting long for an agent that does not take even that."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self.socket.close(code=code)
        if self.transport is not None:
            self.transport.abort()

    async def pace(self) -> None:
        """Wait when frames come faster than FRAMES_PER_SECOND; the agent's own socket fills up meanwhile."""
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
    """Whether the other end answers a ping."""
    asked = time.monotonic()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
            await connection.socket.ping()
    except (TimeoutError, ConnectionError):
        return False
    while time.monotonic() - asked < PROBE_TIMEOUT_SECONDS:
        if connection.heard > asked:
            return True
        if connection.socket.closed:
            return False
        await asyncio.sleep(0.05)
    return False
