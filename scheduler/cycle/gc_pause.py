"""Python's garbage collector, kept out of a cycle of the engine."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """No garbage collection meanwhile: tens of thousands of new rows, none of them garbage, would set it off again and again,
    and each time it would look at all of them. A third of a large snapshot's time was that."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
