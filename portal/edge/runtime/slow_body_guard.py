"""Limit the time for which the server waits for a request body.

The limit is a fixed time plus a time for each received byte. Without a limit, a client that sends one byte a
second could hold a connection, memory and a stream forever. Only the time in which the server waits for the
client counts. So a run that reads the body slowly causes no timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

MAX_BODY_WAIT_SECONDS = 30.0
# The minimum average rate. A pause of MAX_BODY_WAIT_SECONDS is too long, whatever the rate before it was.
MIN_BODY_BYTES_PER_SECOND = 2048

T = TypeVar("T")


class BodyTooSlow(Exception):
    """The body did not arrive in time."""


class SlowBodyGuard:
    """Measure the time for which the server waits for one request body."""

    def __init__(self, max_wait_seconds: float) -> None:
        self.max_wait = self.remaining = max_wait_seconds
        self.timed_out = False

    async def next(self, piece: Awaitable[T]) -> T:
        """Await the next part of the body and return it.

        Raises BodyTooSlow if the permitted waiting time is used up.
        """
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
        """Extend the permitted waiting time for ``count`` received bytes."""
        self.remaining = min(self.max_wait, self.remaining + count / MIN_BODY_BYTES_PER_SECOND)
