"""Record the use of each workspace in Redis. The sweep that stops idle notebooks reads the record.

The key ``gpupool:workspace:<Run.public_id>`` holds JSON with three fields:

- ``sockets``: the number of open WebSockets.
- ``last_request``: the time of the last request, in seconds since the epoch; null if there was none. It shows
  only that a page is open, because an open page polls its kernels every few seconds.
- ``last_input``: the time of the last input of a person, in seconds since the epoch; null if there was none.
  An input is a message from the browser over a WebSocket, a request that changes something, or an opened
  page.

While sockets are open, ``last_input`` is never null. This process does not know earlier input, so the opening
of the first socket counts as input.

The keys are written every WRITE_INTERVAL_SECONDS while sockets are open or requests arrive. While sockets are
open, a key expires after OPEN_TTL_SECONDS. So the key of a crashed edge does not keep a notebook running.
Without open sockets, a key expires after CLOSED_TTL_SECONDS.
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
    """The use of workspaces. It is counted in memory and written to Redis at regular intervals."""

    def __init__(self, bus: RedisBus) -> None:
        self._bus = bus
        self._uses: dict[str, WorkspaceUse] = {}
        self._changed: set[str] = set()

    def request(self, run: str) -> None:
        """Record a request of a browser to this run."""
        self._of(run).last_request = time.time()

    def input(self, run: str) -> None:
        """Record an input of a person to this run."""
        self._of(run).last_input = time.time()

    @contextmanager
    def socket(self, run: str) -> Iterator[None]:
        """Count an open WebSocket to this run while the context is active."""
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
        """Write the records at regular intervals until the task is cancelled."""
        while True:
            await asyncio.sleep(WRITE_INTERVAL_SECONDS)
            await self.write_once()

    async def write_once(self) -> None:
        """Write the record of each run that changed or has open sockets.

        Forget each run that was not used for CLOSED_TTL_SECONDS.
        """
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
