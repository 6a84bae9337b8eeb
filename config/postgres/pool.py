"""Connections that are kept, and what becomes of them when the database goes away and comes back.

psycopg's own pool waits 1, 2, 4 ... seconds between its tries to connect, and as long between two kept connections that it finds
broken. A database that was killed and is back after half a second would be away for 3 s that way, and one that was away for five
minutes for as long again. A try costs next to nothing, so here one follows the other at an even, short pace.
"""

from __future__ import annotations

import os
import select
import time
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool
from psycopg_pool.pool import AddConnection

RECONNECT_SECONDS = 0.1  # between two tries of one lost connection


class FastReconnectPool(ConnectionPool[psycopg.Connection[Any]]):
    """A pool whose ``getconn`` gives a connection that nobody has ended, or raises ``PoolTimeout`` after ``timeout``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._owner_pid = os.getpid()

    def belongs_to_this_process(self) -> bool:
        """Was it made by this process? Threads and connections do not come along when a process is forked."""
        return self._owner_pid == os.getpid()

    def schedule_task(self, task: Any, delay: float) -> None:
        """As psycopg does, but for the pause before it connects again."""
        super().schedule_task(
            task, min(delay, RECONNECT_SECONDS) if isinstance(task, AddConnection) else delay
        )

    def getconn(self, timeout: float | None = None) -> psycopg.Connection[Any]:
        """A connection that nobody has ended. Each broken one is replaced, and the next one looked at without a pause."""
        ends = time.monotonic() + (self.timeout if timeout is None else timeout)
        broken = 0
        while True:
            connection: psycopg.Connection[Any] = super().getconn(max(0.0, ends - time.monotonic()))
            try:
                if _has_unread_data(connection):
                    self.check_connection(connection)
                return connection
            except psycopg.Error:
                self.putconn(connection)  # sees that it is broken, and has another one made
            except BaseException:
                self.putconn(connection)
                raise
            broken += 1
            if (
                broken > self.max_size
            ):  # these are new ones: a server that takes connections and drops them at once
                time.sleep(RECONNECT_SECONDS)


def _has_unread_data(connection: psycopg.Connection[Any]) -> bool:
    """Has the server said anything while the connection was idle? Whoever ends one says so or hangs up; for one that is gone
    without a word the kernel does, as the settings' keepalives find no answer. Without that there is no need to ask: a question
    would cost as much as the shortest statement."""
    line = select.poll()
    line.register(connection.fileno(), select.POLLIN)
    return bool(line.poll(0))
