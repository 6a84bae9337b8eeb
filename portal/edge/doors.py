"""Decisions about workspaces, kept for a moment, and the sockets that are open because of them.

A request asks the rows at most once in FRESH_SECONDS per browser. An open socket is watched: at each nudge, and at the latest
every FRESH_SECONDS, one query decides again about all browsers that have one open, and those that may not go on are cut.
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

from portal.edge import access, metrics
from portal.edge.access import Denied, Pass
from portal.edge.bus import Bus
from portal.edge.threads import Threads

log = structlog.get_logger(__name__)

FRESH_SECONDS = 2.0
COALESCE_SECONDS = 0.02
MOST_REMEMBERED = 20_000
MOST_TRIES = 3
BLIND_SECONDS = 30.0  # an open socket whose right could not be checked this long is cut

Cut = Callable[[], None]


@dataclass(frozen=True)
class Answer:
    decision: Pass | Denied
    at: float


class Doors:
    """Lets browsers through to workspaces, and out again."""

    def __init__(self, threads: Threads, bus: Bus) -> None:
        self._threads = threads
        self._answers: dict[str, Answer] = {}
        self._asking: dict[str, asyncio.Task[Pass | Denied]] = {}
        self._open: dict[str, set[Cut]] = defaultdict(set)
        self._look_again = asyncio.Event()
        self._changes = 0
        bus.on_access(lambda _: self.changed())
        bus.on_page(self._page_changed)
        bus.after_gap(self.changed)

    def changed(self) -> None:
        """Something that decisions rest on may have changed: forget them, and look at every open socket now."""
        self._changes += 1
        self._answers.clear()
        self._look_again.set()

    def _page_changed(self, topic: str) -> None:
        if topic.startswith("workload:"):
            self.changed()

    async def decide(self, token: str) -> Pass | Denied:
        """What a browser with this cookie may reach."""
        token_hash = access.hashed(token)
        known = self._answers.get(token_hash)
        if known is not None and time.monotonic() - known.at < FRESH_SECONDS:
            return known.decision
        asking = self._asking.get(token_hash)
        if asking is None:
            asking = asyncio.create_task(self._ask(token_hash))
            self._asking[token_hash] = asking
            asking.add_done_callback(lambda _: self._asking.pop(token_hash, None))
        return await asyncio.shield(asking)

    async def _ask(self, token_hash: str) -> Pass | Denied:
        for _ in range(MOST_TRIES):
            changes = self._changes
            found = await self._threads.ask(access.look_up, [token_hash], timezone.now())
            if changes == self._changes:
                if len(self._answers) >= MOST_REMEMBERED:
                    self._answers.clear()
                self._answers[token_hash] = Answer(found[token_hash], time.monotonic())
                break
            # Something changed while the rows were read: ask again, and remember nothing that may be older.
        return found[token_hash]

    @contextmanager
    def watched(self, token: str, cut: Cut) -> Iterator[None]:
        """Call ``cut`` when this browser may no longer go on."""
        token_hash = access.hashed(token)
        self._open[token_hash].add(cut)
        try:
            yield
        finally:
            cuts = self._open[token_hash]
            cuts.discard(cut)
            if not cuts:
                del self._open[token_hash]

    async def watch(self) -> None:
        """Run for the life of the process."""
        seen_at = time.monotonic()
        while True:
            with suppress(TimeoutError):  # nothing was said: look all the same
                async with asyncio.timeout(FRESH_SECONDS):
                    await self._look_again.wait()
                    await asyncio.sleep(COALESCE_SECONDS)
            self._look_again.clear()
            try:
                await self._look()
                seen_at = time.monotonic()
            except (DatabaseError, OSError) as error:
                log.warning("open workspaces could not be checked", error=str(error))
                if time.monotonic() - seen_at > BLIND_SECONDS:
                    self._cut(list(self._open))

    def close(self) -> None:
        """Cut everybody; browsers come back by themselves."""
        self._cut(list(self._open))

    async def _look(self) -> None:
        tokens = list(self._open)
        if not tokens:
            return
        found = await self._threads.ask(access.look_up, tokens, timezone.now())
        self._cut([token for token in tokens if not isinstance(found[token], Pass)])

    def _cut(self, tokens: list[str]) -> None:
        for token in tokens:
            for cut in list(self._open.get(token, ())):
                metrics.CUT.inc()
                cut()
