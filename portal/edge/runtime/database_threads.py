"""Rows are read and written in a few threads, so that nothing that waits holds a thread or a database connection."""

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

# What PostgreSQL says last on a connection that it ends; one that just breaks has no code at all.
SERVER_CLOSED_SQLSTATES = {"57P01", "57P02", "25P03"}


class DatabaseThreads:
    """A bounded crew that runs calls into the ORM. Work that finds all threads busy waits in line without holding anything."""

    def __init__(self, size: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=size, thread_name_prefix=name)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's answer, computed in a thread whose database connection goes back to the pool at once."""
        return await self._in_thread(functools.partial(_close_connections_after, call, *args, **kwargs))

    async def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like ``run``, for a call that may be made twice: when its connection breaks under way it is made once more, on a fresh
        one. The first may have been committed all the same."""
        return await self._in_thread(functools.partial(_retry_once, call, *args, **kwargs))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Let running calls finish, start no other."""
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
        log.info("a database connection broke, asked again", error=str(error).partition("\n")[0])
    return _close_connections_after(call, *args, **kwargs)


def _is_lost_connection(error: Exception) -> bool:
    """Did a connection that had been there end? Not: a lock or a limit (the same again), or no connection to be had at all."""
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error) or isinstance(cause, PoolTimeout):
        return False
    return cause.sqlstate is None or cause.sqlstate in SERVER_CLOSED_SQLSTATES
