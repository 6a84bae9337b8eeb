"""One snapshot for all that one answer is made of: a page that asks several things about a moment reads that moment once.

For reads only. What is decided under a lock is judged by ``snapshot.take`` itself, on rows as they are then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime

from scheduler.core.model import snapshot as model
from scheduler.cycle import snapshot

CachedSnapshots = dict[tuple[tuple[int, ...], datetime], model.Snapshot]
_cached: ContextVar[CachedSnapshots | None] = ContextVar("snapshots of this answer", default=None)


@contextmanager
def share_snapshots() -> Iterator[None]:
    """Within it, ``take_cached_snapshot`` reads each moment of the same pools once. It ends with the answer; nothing is kept beyond."""
    before = _cached.set({} if _cached.get() is None else _cached.get())
    try:
        yield
    finally:
        _cached.reset(before)


def take_cached_snapshot(pool_ids: Sequence[int], now: datetime) -> model.Snapshot:
    """``snapshot.take``, or what this answer took of the same pools and moment before."""
    known = _cached.get()
    if known is None:
        return snapshot.take_snapshot(pool_ids, now)
    key = (tuple(pool_ids), now)
    if key not in known:
        known[key] = snapshot.take_snapshot(pool_ids, now)
    return known[key]
