"""Share snapshots among the reads of one web request.

Use this module for reads only. Decisions under a lock take a new snapshot with ``snapshot.take_snapshot``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime

from scheduler.core.model import snapshot as model
from scheduler.cycle import snapshot

CachedSnapshots = dict[tuple[tuple[int, ...], datetime], model.Snapshot]
_cached: ContextVar[CachedSnapshots | None] = ContextVar("shared snapshots", default=None)


@contextmanager
def share_snapshots() -> Iterator[None]:
    """Reuse snapshots of the same pools and time within this context. Discard them at its end."""
    token = _cached.set({} if _cached.get() is None else _cached.get())
    try:
        yield
    finally:
        _cached.reset(token)


def take_cached_snapshot(pool_ids: Sequence[int], now: datetime) -> model.Snapshot:
    """Return the shared snapshot of these pools at ``now``.

    Take a new snapshot if there is none yet, or if the caller is outside ``share_snapshots``.
    """
    known = _cached.get()
    if known is None:
        return snapshot.take_snapshot(pool_ids, now)
    key = (tuple(pool_ids), now)
    if key not in known:
        known[key] = snapshot.take_snapshot(pool_ids, now)
    return known[key]
