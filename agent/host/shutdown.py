"""Ends the agent quickly, because nothing renews the leases of running workloads until its next start."""

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

CANCEL_WAIT_SECONDS = 2.0  # longest wait for the end of cancelled tasks
FINAL_WRITE_SECONDS = 5.0  # longest wait for threads to complete their writes
# Errors of a print or flush if the reader has closed the agent's output, or if there is no output.
STREAM_ERRORS = (AttributeError, OSError, ValueError)


async def cancel_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait at most ``CANCEL_WAIT_SECONDS`` for them. Log each task that did not end."""
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    ended, pending = await asyncio.wait(tasks, timeout=CANCEL_WAIT_SECONDS)
    for task in pending:
        log.error(
            "%s does not end and is abandoned", getattr(task.get_coro(), "__qualname__", task.get_name())
        )
    for task in ended:
        if not task.cancelled() and task.exception() is not None:
            log.info(
                "%s ended with %r",
                getattr(task.get_coro(), "__qualname__", task.get_name()),
                task.exception(),
            )


def run_and_exit(main: Coroutine[Any, Any, None], status_of: Callable[[BaseException], int]) -> NoReturn:
    """Run ``main`` and end this process.

    The exit status is 0, or ``status_of(error)`` if ``main`` raised an error. ``asyncio.run`` and Python
    itself would wait for every task and thread, and a thread on a slow disk could take minutes. This function
    waits at most FINAL_WRITE_SECONDS for writes that threads have begun.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    status = 1
    try:
        running = loop.create_task(main)
        loop.run_until_complete(asyncio.wait([running]))
        error = asyncio.CancelledError() if running.cancelled() else running.exception()
        with contextlib.suppress(*STREAM_ERRORS):
            status = 0 if error is None else status_of(error)
        loop.run_until_complete(
            asyncio.wait([loop.create_task(loop.shutdown_default_executor())], timeout=FINAL_WRITE_SECONDS)
        )
    except KeyboardInterrupt:  # SIGINT arrived before ``main`` installed its signal handlers
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
