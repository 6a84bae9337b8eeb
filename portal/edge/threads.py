"""Rows are read and written in a few threads, so that nothing that waits holds a thread or a database connection."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import connection

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A bounded crew that runs calls into the ORM. Work that finds all threads busy waits in line without holding anything."""

    def __init__(self, size: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=size, thread_name_prefix=name)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's answer, computed in a thread whose database connection goes back to the pool at once."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, functools.partial(_and_let_go, call, *args, **kwargs))

    def close(self) -> None:
        """Let running calls finish, start no other."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _and_let_go(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return call(*args, **kwargs)
    finally:
        connection.close()
