"""How long the sender of a request's body is waited for: a moment each time, and longer the more has come.

A body that comes a byte a second holds a connection, memory and the way to a run for as long as its sender likes. Only the time
in which the server waits for the sender counts, so a run that reads slowly is not its browser's fault.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

MAX_BODY_WAIT_SECONDS = 30.0
MIN_BODY_BYTES_PER_SECOND = 2048  # on average; a stop of PATIENCE_SECONDS is one too many in any case

T = TypeVar("T")


class BodyTooSlow(Exception):
    """The body did not come in time."""


class SlowBodyGuard:
    """Of one body."""

    def __init__(self, patience: float) -> None:
        self.patience = self.left = patience
        self.timed_out = False

    async def next(self, piece: Awaitable[T]) -> T:
        """What comes next. Raises BodyTooSlow."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.left):
                return await piece
        except TimeoutError:
            self.timed_out = True
            raise BodyTooSlow(f"nothing came for {self.left:.0f} s, or too little before") from None
        finally:
            self.left = max(0.0, self.left - (time.monotonic() - began))

    def add_received(self, count: int) -> None:
        """So many bytes arrived."""
        self.left = min(self.patience, self.left + count / MIN_BODY_BYTES_PER_SECOND)
