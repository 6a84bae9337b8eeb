"""The end of an agent holds up nothing: until the next one is there, nobody renews the leases of what runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Coroutine
from typing import Any, NoReturn

log = logging.getLogger("agent")

CANCEL_WAIT_SECONDS = 2.0  # so long a task has to end, and each of several that end one after the other
FINAL_WRITE_SECONDS = 5.0  # so long threads have to write what they have begun
STREAM_ERRORS = (
    AttributeError,
    OSError,
    ValueError,
)  # whoever read what we print has gone, or there never was anybody


async def cancel_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel them and wait until they have ended; what has not within ``CANCEL_WAIT_SECONDS`` is told and left behind."""
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    ended, left = await asyncio.wait(tasks, timeout=CANCEL_WAIT_SECONDS)
    for task in left:
        log.error(
            "%s does not end and is left behind", getattr(task.get_coro(), "__qualname__", task.get_name())
        )
    for task in ended:
        if not task.cancelled() and task.exception() is not None:
            log.info(
                "%s ended with %r",
                getattr(task.get_coro(), "__qualname__", task.get_name()),
                task.exception(),
            )


def run_and_exit(main: Coroutine[Any, Any, None], status_of: Callable[[BaseException], int]) -> NoReturn:
    """Run it, and end this process with 0, or with the status of its fault. ``asyncio.run`` and Python itself would wait for every
    task and every thread: one at a slow disk, or a task that swallows its end, takes minutes. What threads have begun to write
    they write."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    status = 1
    try:
        running = loop.create_task(main)
        loop.run_until_complete(asyncio.wait([running]))
        fault = asyncio.CancelledError() if running.cancelled() else running.exception()
        with contextlib.suppress(*STREAM_ERRORS):
            status = 0 if fault is None else status_of(fault)
        loop.run_until_complete(
            asyncio.wait([loop.create_task(loop.shutdown_default_executor())], timeout=FINAL_WRITE_SECONDS)
        )
    except KeyboardInterrupt:  # before it takes signals itself: it has begun nothing
        status = 128 + signal.SIGINT
    finally:
        _exit_now(status)


def _exit_now(status: int) -> NoReturn:
    try:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(*STREAM_ERRORS):
                stream.flush()
    finally:
        os._exit(status)
