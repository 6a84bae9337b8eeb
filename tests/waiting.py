"""Wait for conditions in tests. A deadline is so long that a slow machine does not miss it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

DEADLINE_SECONDS = 100.0  # enough for a busy machine; below the time limit of a test
POLL_SECONDS = 0.02
PAGE_MILLISECONDS = 20_000  # limit of Playwright's expectations about a page, long enough for a busy machine


def wait_until(
    condition: Callable[[], object], seconds: float = DEADLINE_SECONDS, *, every: float = POLL_SECONDS
) -> None:
    """Wait until the condition is true. Check it every `every` seconds. Fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not happen in {seconds:.0f} s"
        time.sleep(every)


async def until(condition: Callable[[], object], seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until the condition is true, while the event loop runs. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not happen in {seconds:.0f} s"
        await asyncio.sleep(POLL_SECONDS)


async def until_unchanged(value: Callable[[], object], looks: int = 25) -> None:
    """Wait until `looks` successive reads of the value are equal, while the event loop runs."""
    last, equal = value(), 0

    def is_unchanged() -> bool:
        nonlocal last, equal
        now = value()
        last, equal = now, equal + 1 if now == last else 0
        return equal >= looks

    await until(is_unchanged)
