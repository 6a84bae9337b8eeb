"""One snapshot for all that one answer is made of: a page that asks several things about a moment reads that moment once.

For reads only. What is decided under a lock is judged by ``snapshot.take`` itself, on rows as they are then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime

from scheduler import snapshot
from scheduler.core import model

Known = dict[tuple[tuple[int, ...], datetime], model.Snapshot]
_known: ContextVar[Known | None] = ContextVar("snapshots of this answer", default=None)


@contextmanager
def one_answer() -> Iterator[None]:
    """Within it, ``take`` reads each moment of the same pools once. It ends with the answer; nothing is kept beyond."""
    before = _known.set({} if _known.get() is None else _known.get())
    try:
        yield
    finally:
        _known.reset(before)


def take(pool_ids: Sequence[int], now: datetime) -> model.Snapshot:
    """``snapshot.take``, or what this answer took of the same pools and moment before."""
    known = _known.get()
    if known is None:
        return snapshot.take(pool_ids, now)
    key = (tuple(pool_ids), now)
    if key not in known:
        known[key] = snapshot.take(pool_ids, now)
    return known[key]
