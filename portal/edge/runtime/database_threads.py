"""Run database calls in a few threads, so that no waiting task holds a thread or a database connection."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import psycopg
import structlog
from django.db import InterfaceError, OperationalError, connection
from psycopg_pool import PoolTimeout

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger(__name__)

# PostgreSQL's codes for a connection that the server ends; a connection that breaks has no code.
SERVER_CLOSED_SQLSTATES = {"57P01", "57P02", "25P03"}


class DatabaseThreads:
    """A bounded thread pool for ORM calls.

    Calls wait for a free thread without holding a database connection.
    """

    def __init__(self, size: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=size, thread_name_prefix=name)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the call's result, computed in a thread.

        Afterwards the thread returns its database connection to the pool.
        """
        return await self._in_thread(functools.partial(_close_connections_after, call, *args, **kwargs))

    async def run_repeatable(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the call's result; repeat the call once on a new connection if its connection breaks.

        Use it only for calls that may run twice, because the first call may have been committed.
        """
        return await self._in_thread(functools.partial(_retry_once, call, *args, **kwargs))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Finish running calls and accept no others."""
        self._executor.shutdown(wait=True, cancel_futures=True)


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
    """Return True if an established connection ended.

    Errors of locks, of limits and of new connections do not count.
    """
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error) or isinstance(cause, PoolTimeout):
        return False
    return cause.sqlstate is None or cause.sqlstate in SERVER_CLOSED_SQLSTATES
