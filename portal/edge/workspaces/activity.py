"""How much each workspace is used, for the idle rule (portal.tasks.idle_cull): kept in Redis, gone when the edge is.

``gpupool:workspace:<Run.public_id>`` is JSON ``{"sockets", "last_request", "last_input"}``: WebSockets open now; when the last
request came, and when somebody last did something (seconds since the epoch, null for never). An open page asks for its kernels
every few seconds, so ``last_request`` says only that a page is open. ``last_input`` says that somebody works in it: a message
from the browser over a WebSocket, a request that changes something, a page that was opened. With open sockets it is never null:
what was before this process is unknown, and counts from when the first socket was seen.

Written every WRITE_SECONDS while sockets are open or requests come. With open sockets it expires after OPEN_SECONDS, so that an
edge that died leaves no notebook in use for ever, else after KEPT_SECONDS.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from portal.edge.runtime import metrics
from portal.edge.runtime.redis_bus import RedisBus

WRITE_INTERVAL_SECONDS = 5.0
OPEN_TTL_SECONDS = 30
CLOSED_TTL_SECONDS = 24 * 3600
WORKSPACE_KEY_PREFIX = "gpupool:workspace:"


@dataclass
class WorkspaceUse:
    sockets: int = 0
    last_request: float | None = None
    last_input: float | None = None


class WorkspaceActivity:
    """Counts in memory, writes now and then."""

    def __init__(self, bus: RedisBus) -> None:
        self._bus = bus
        self._uses: dict[str, WorkspaceUse] = {}
        self._changed: set[str] = set()

    def request(self, run: str) -> None:
        """A request of a browser came."""
        self._of(run).last_request = time.time()

    def input(self, run: str) -> None:
        """Somebody did something."""
        self._of(run).last_input = time.time()

    @contextmanager
    def socket(self, run: str) -> Iterator[None]:
        """A WebSocket is open meanwhile."""
        use = self._of(run)
        use.sockets += 1
        use.last_input = use.last_input or time.time()
        metrics.SOCKETS.inc()
        try:
            yield
        finally:
            self._of(run).sockets -= 1
            metrics.SOCKETS.dec()

    def _of(self, run: str) -> WorkspaceUse:
        self._changed.add(run)
        return self._uses.setdefault(run, WorkspaceUse())

    async def write(self) -> None:
        """Run for the life of the process."""
        while True:
            await asyncio.sleep(WRITE_INTERVAL_SECONDS)
            await self.write_once()

    async def write_once(self) -> None:
        """Write what changed or is in use, and forget what is neither."""
        changed, self._changed = self._changed, set()
        for run, use in list(self._uses.items()):
            if run in changed or use.sockets:
                await self._bus.keep(
                    WORKSPACE_KEY_PREFIX + run,
                    json.dumps(asdict(use)),
                    OPEN_TTL_SECONDS if use.sockets else CLOSED_TTL_SECONDS,
                )
            elif use.last_request is not None and time.time() - use.last_request > CLOSED_TTL_SECONDS:
                del self._uses[run]
