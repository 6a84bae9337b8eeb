"""Pause Python's garbage collector during a cycle of the engine or a round of charging."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection in this context.

    A cycle creates tens of thousands of objects, and none of them is garbage. Each garbage collection would
    scan all of these objects. Without the pause, collections took a third of the time of a large snapshot
    and a fifth of the processor time of charging.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
