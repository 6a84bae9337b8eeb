"""Connections that are kept, and what becomes of them when the database goes away and comes back.

psycopg's own pool waits 1, 2, 4 ... seconds between its tries to connect, and as long between two kept connections that it finds
broken. A database that was killed and is back after half a second would be away for 3 s that way, and one that was away for five
minutes for as long again. A try costs next to nothing, so here one follows the other at an even, short pace.
"""

from __future__ import annotations

import os
import time
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool
from psycopg_pool.pool import AddConnection

AGAIN_SECONDS = 0.1  # between two tries of one lost connection


class QuickPool(ConnectionPool[psycopg.Connection[Any]]):
    """A pool whose ``getconn`` gives a connection that has just answered, or raises ``PoolTimeout`` after ``timeout``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._made_by = os.getpid()

    def is_ours(self) -> bool:
        """Was it made by this process? Threads and connections do not come along when a process is forked."""
        return self._made_by == os.getpid()

    def schedule_task(self, task: Any, delay: float) -> None:
        """As psycopg does, but for the pause before it connects again."""
        super().schedule_task(task, min(delay, AGAIN_SECONDS) if isinstance(task, AddConnection) else delay)

    def getconn(self, timeout: float | None = None) -> psycopg.Connection[Any]:
        """A connection that has just answered. Each broken one is replaced, and the next one looked at without a pause."""
        ends = time.monotonic() + (self.timeout if timeout is None else timeout)
        broken = 0
        while True:
            connection: psycopg.Connection[Any] = super().getconn(max(0.0, ends - time.monotonic()))
            try:
                self.check_connection(connection)
                return connection
            except psycopg.Error:
                self.putconn(connection)  # sees that it is broken, and has another one made
            except BaseException:
                self.putconn(connection)
                raise
            broken += 1
            if broken > self.max_size:  # these are new ones: a server that takes connections and drops them at once
                time.sleep(AGAIN_SECONDS)
