"""Limit the time that the server waits for a request's body: a fixed time, and more for each received byte.

Otherwise a client that sends one byte a second could hold a connection, memory and a stream forever.
Only the time in which the server waits for the sender counts, so a run that reads slowly does not cause a
timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

MAX_BODY_WAIT_SECONDS = 30.0
MIN_BODY_BYTES_PER_SECOND = 2048  # on average; a pause of MAX_BODY_WAIT_SECONDS is always too long

T = TypeVar("T")


class BodyTooSlow(Exception):
    """The body did not arrive in time."""


class SlowBodyGuard:
    """The limit of the waiting time for one body."""

    def __init__(self, max_wait_seconds: float) -> None:
        self.max_wait = self.remaining = max_wait_seconds
        self.timed_out = False

    async def next(self, piece: Awaitable[T]) -> T:
        """Return the next part of the body. Raises BodyTooSlow."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.remaining):
                return await piece
        except TimeoutError:
            self.timed_out = True
            raise BodyTooSlow(f"no byte for {self.remaining:.0f} s, or too few before") from None
        finally:
            self.remaining = max(0.0, self.remaining - (time.monotonic() - began))

    def add_received(self, count: int) -> None:
        """Count received bytes, which extend the permitted time."""
        self.remaining = min(self.max_wait, self.remaining + count / MIN_BODY_BYTES_PER_SECOND)
