"""The end of an agent holds up nothing: until the next one is there, nobody renews the leases of what runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Collection
from typing import Any, NoReturn

log = logging.getLogger("agent")

END_SECONDS = 5.0  # so long a task has to end


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel them and wait until they have ended; what has not within ``END_SECONDS`` is told and left behind."""
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    ended, left = await asyncio.wait(tasks, timeout=END_SECONDS)
    for task in left:
        log.error("%s does not end and is left behind", getattr(task.get_coro(), "__qualname__", task.get_name()))
    for task in ended:
        if not task.cancelled() and task.exception() is not None:
            log.info("%s ended with %r", getattr(task.get_coro(), "__qualname__", task.get_name()), task.exception())


def leave(status: int) -> NoReturn:
    """End this process as it stands, all that is to be kept being kept: Python itself would wait for every thread first, and
    one at a slow disk, or a task that swallows its end, takes minutes."""
    logging.shutdown()
    with contextlib.suppress(OSError):  # whoever read what we print has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
