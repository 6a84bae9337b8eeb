"""Limit the open connections of the edge, and the time until the first request of a connection.

Without these limits, idle connections could use all file descriptors of the process, and it could accept no
agent any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Any

import structlog
from aiohttp import web

from portal.edge.runtime import metrics

log = structlog.get_logger(__name__)

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

# A proxy on the same machine needs no setting.
LOOPBACK_NETWORKS: tuple[IpNetwork, ...] = (
    ipaddress.ip_network("127.0.0.0/8"),
    ipaddress.ip_network("::1/128"),
)

# A client that connects sends its first request at once. Proxies keep a connection open only after a request.
FIRST_HEAD_SECONDS = 20.0
# Descriptors for the database, Redis, log files, and files that are open for a moment.
RESERVED_DESCRIPTORS = 200
BACKLOG = 1024


def raise_file_limit() -> int:
    """Raise the limit of open files of this process as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


class ConnectionLimits:
    """Count the open connections of one process.

    ``proxies`` are networks whose addresses have no limit of their own, because many clients share them.
    """

    def __init__(self, total: int, per_address: int, proxies: Sequence[IpNetwork], files: int) -> None:
        self.total = max(1, min(total, files - RESERVED_DESCRIPTORS))
        if self.total < total:
            log.warning(
                "the limit of open files allows fewer connections than GPUPOOL_EDGE_CONNECTIONS",
                files=files,
                connections=self.total,
                wanted=total,
            )
        self._per_address = per_address
        self._proxies = proxies
        self._open: Counter[str] = Counter()
        self._count = 0

    def admit(self, address: str) -> bool:
        """Count a new connection, and return True. Return False if a limit does not allow it."""
        limit = ""
        if self._count >= self.total:
            limit = "total"
        elif self._open[address] >= self._per_address and not self._is_proxy(address):
            limit = "address"
        if limit:
            metrics.CONNECTIONS_REFUSED.labels(limit).inc()
            log.warning("connection refused: too many are open", limit=limit, address=address)
            return False
        self._open[address] += 1
        self._count += 1
        metrics.CONNECTIONS.set(self._count)
        return True

    def release(self, address: str) -> None:
        """Count the end of a connection that was admitted."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]
        self._count -= 1
        metrics.CONNECTIONS.set(self._count)

    def _is_proxy(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._proxies)


class LimitedConnection(web.RequestHandler):
    """An HTTP connection that counts in ``limits``. It is closed if its first request does not arrive."""

    __slots__ = ("_address", "_first_head", "_limits")

    def __init__(self, server: Any, *, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(server, **options)
        self._limits = limits
        self._address: str | None = None  # None: not admitted
        self._first_head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the connection if the limits allow it, otherwise close it."""
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        if not self._limits.admit(address):
            transport.abort()
            return
        self._address = address
        self._first_head = asyncio.get_running_loop().call_later(FIRST_HEAD_SECONDS, transport.abort)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count the end of the connection."""
        if self._address is None:
            return
        self.note_request()
        self._limits.release(self._address)
        super().connection_lost(exc)

    def note_request(self) -> None:
        """Record that the head of a request has arrived. Then only the idle timeout of aiohttp applies."""
        if self._first_head is not None:
            self._first_head.cancel()
            self._first_head = None


class LimitedSite(web.BaseSite):
    """A TCP site whose connections count in ``limits``. ``options`` are those of its AppRunner."""

    __slots__ = ("_host", "_limits", "_options", "_port")

    def __init__(
        self, runner: web.AppRunner, host: str, port: int, limits: ConnectionLimits, options: dict[str, Any]
    ) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._host, self._port = host, port
        self._limits, self._options = limits, options

    @property
    def name(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen on the address."""
        await super().start()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: LimitedConnection(self._runner.server, limits=self._limits, loop=loop, **self._options),
            self._host,
            self._port,
            backlog=BACKLOG,
            reuse_address=True,
            family=socket.AF_UNSPEC,
        )
