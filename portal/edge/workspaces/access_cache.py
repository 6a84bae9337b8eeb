"""Cache the access of browsers to workspaces, and cut open WebSockets whose access has ended.

For one browser, the database is read at most once in DECISION_TTL_SECONDS. The access of all open WebSockets
is checked together: after each change, and at least every DECISION_TTL_SECONDS.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import structlog
from django.db import DatabaseError
from django.utils import timezone

from portal.edge.runtime import metrics
from portal.edge.runtime.database_threads import DatabaseThreads
from portal.edge.runtime.redis_bus import RedisBus
from portal.edge.workspaces import access
from portal.edge.workspaces.access import AccessDenied, WorkspaceGrant
from portal.models import hash_workspace_secret

log = structlog.get_logger(__name__)

DECISION_TTL_SECONDS = 2.0
RECHECK_DEBOUNCE_SECONDS = 0.02
MAX_CACHED_DECISIONS = 20_000
MAX_DECISION_ATTEMPTS = 3
MAX_UNVERIFIED_SECONDS = 30.0  # open sockets are cut if no check has succeeded for this long

CutSocket = Callable[[], None]


@dataclass(frozen=True)
class CachedDecision:
    decision: WorkspaceGrant | AccessDenied
    at: float


class WorkspaceAccessCache:
    """The cached decisions by browser, and for each open connection a callback that cuts it."""

    def __init__(self, threads: DatabaseThreads, bus: RedisBus) -> None:
        self._threads = threads
        self._decisions: dict[str, CachedDecision] = {}
        self._pending: dict[str, asyncio.Task[WorkspaceGrant | AccessDenied]] = {}
        self._open: dict[str, set[CutSocket]] = defaultdict(set)
        self._recheck_due = asyncio.Event()
        self._changes = 0
        bus.on_access(lambda _: self.changed())
        bus.on_page(self._page_changed)
        bus.on_reconnect(self.changed)

    def changed(self) -> None:
        """Discard all cached decisions and check every open socket now, because rights may have changed."""
        self._changes += 1
        self._decisions.clear()
        self._recheck_due.set()

    def _page_changed(self, topic: str) -> None:
        if topic.startswith("workload:"):
            self.changed()

    async def decide(self, token: str) -> WorkspaceGrant | AccessDenied:
        """Return the access or the refusal for a browser with this cookie."""
        token_hash = hash_workspace_secret(token)
        cached = self._decisions.get(token_hash)
        if cached is not None and time.monotonic() - cached.at < DECISION_TTL_SECONDS:
            return cached.decision
        pending = self._pending.get(token_hash)
        if pending is None:
            pending = asyncio.create_task(self._read_decision(token_hash))
            self._pending[token_hash] = pending
            pending.add_done_callback(lambda _: self._pending.pop(token_hash, None))
        return await asyncio.shield(pending)

    async def _read_decision(self, token_hash: str) -> WorkspaceGrant | AccessDenied:
        for _ in range(MAX_DECISION_ATTEMPTS):
            changes = self._changes
            grants = await self._threads.run_repeatable(
                access.grants_by_token_hash, [token_hash], timezone.now()
            )
            if changes == self._changes:
                if len(self._decisions) >= MAX_CACHED_DECISIONS:
                    self._decisions.clear()
                self._decisions[token_hash] = CachedDecision(grants[token_hash], time.monotonic())
                break
            # A change arrived while the rows were read. The decision may be outdated, so read the rows again.
        return grants[token_hash]

    @contextmanager
    def watched(self, token: str, cut: CutSocket) -> Iterator[None]:
        """While the context is active, call ``cut`` if the browser with this cookie loses its access."""
        token_hash = hash_workspace_secret(token)
        self._open[token_hash].add(cut)
        try:
            yield
        finally:
            cuts = self._open[token_hash]
            cuts.discard(cut)
            if not cuts:
                del self._open[token_hash]

    async def watch(self) -> None:
        """Check the access of open sockets until the task is cancelled."""
        checked_at = time.monotonic()
        while True:
            with suppress(TimeoutError):  # after the timeout, check even without a change
                async with asyncio.timeout(DECISION_TTL_SECONDS):
                    await self._recheck_due.wait()
                    await asyncio.sleep(RECHECK_DEBOUNCE_SECONDS)
            self._recheck_due.clear()
            try:
                await self._recheck_open()
                checked_at = time.monotonic()
            except (DatabaseError, OSError) as error:
                log.warning("open workspaces could not be checked", error=str(error))
                if time.monotonic() - checked_at > MAX_UNVERIFIED_SECONDS:
                    self._cut(list(self._open))

    def close(self) -> None:
        """Cut every open connection. The browsers connect again."""
        self._cut(list(self._open))

    async def _recheck_open(self) -> None:
        tokens = list(self._open)
        if not tokens:
            return
        grants = await self._threads.run_repeatable(access.grants_by_token_hash, tokens, timezone.now())
        self._cut([token for token in tokens if not isinstance(grants[token], WorkspaceGrant)])

    def _cut(self, tokens: list[str]) -> None:
        for token in tokens:
            for cut in list(self._open.get(token, ())):
                metrics.CUT.inc()
                cut()
