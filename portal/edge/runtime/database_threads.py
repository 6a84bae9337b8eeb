"""Run database calls in a few threads.

Only a running call holds a thread and a database connection. A task that waits for the network holds none.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import psycopg
import structlog
from django.db import InterfaceError, OperationalError, connection
from psycopg_pool import PoolTimeout

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger(__name__)

# PostgreSQL's error codes for connections that the server has closed. A broken connection has no code.
SERVER_CLOSED_SQLSTATES = {"57P01", "57P02", "25P03"}


class DatabaseTimeout(OperationalError):
    """The database has not answered a call in time. The call may still have an effect."""


def _drop_result(ended: asyncio.Future[Any]) -> None:
    if not ended.cancelled():
        ended.exception()


class DatabaseThreads:
    """A thread pool of limited size for calls that use Django's database connection.

    A call that waits for a free thread holds no database connection.
    """

    def __init__(self, size: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=size, thread_name_prefix=name)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the call in a thread and return its result.

        Afterwards the thread returns its database connection to the connection pool.
        """
        return await self._in_thread(functools.partial(_close_connections_after, call, *args, **kwargs))

    async def run_repeatable(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the call in a thread and return its result. Run it again if the database connection breaks.

        The call is repeated at most once, on a new connection. Use this method only for calls that may run
        twice. The first run may have been committed before the connection broke.
        """
        return await self._in_thread(functools.partial(_retry_once, call, *args, **kwargs))

    async def run_in_time(self, seconds: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a repeatable call. Raise DatabaseTimeout if it has not ended after ``seconds``.

        The call then continues in its thread, and its result is dropped.
        """
        running = asyncio.ensure_future(self.run_repeatable(call, *args, **kwargs))
        done, _ = await asyncio.wait((running,), timeout=seconds)
        if not done:
            running.add_done_callback(_drop_result)
            raise DatabaseTimeout(f"the database has not answered for {seconds:g} s")
        return running.result()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Wait for the running calls. Cancel waiting calls and accept no new ones."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def abandon(self) -> None:
        """Cancel waiting calls and accept no new ones, without waiting for running calls."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _close_connections_after(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return call(*args, **kwargs)
    finally:
        connection.close()


def _retry_once(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return _close_connections_after(call, *args, **kwargs)
    except (OperationalError, InterfaceError) as error:
        if not _is_lost_connection(error):
            raise
        log.info("database connection broke; the call is repeated", error=str(error).partition("\n")[0])
    return _close_connections_after(call, *args, **kwargs)


def _is_lost_connection(error: Exception) -> bool:
    """Return True if an established database connection has ended.

    Return False for a lock timeout, for an exceeded limit, and if a new connection cannot be opened.
    """
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error) or isinstance(cause, PoolTimeout):
        return False
    return cause.sqlstate is None or cause.sqlstate in SERVER_CLOSED_SQLSTATES
