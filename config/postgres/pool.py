"""Keep a pool of database connections that reconnects quickly after the database was unavailable.

psycopg's pool waits 1, 2, 4 ... seconds between attempts to connect. If its ``getconn`` finds several broken
connections in a row, it also waits before it tries the next one. With these pauses, the database would be
unavailable for 3 s after a restart of half a second. After an outage of five minutes, it could be unavailable
for another five minutes. An attempt is cheap, so this pool retries at a short, constant interval.
"""

from __future__ import annotations

import os
import select
import time
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool
from psycopg_pool.pool import AddConnection

RECONNECT_SECONDS = 0.1  # pause between two attempts to replace a connection


class FastReconnectPool(ConnectionPool[psycopg.Connection[Any]]):
    """A pool whose ``getconn`` returns only working connections.

    It raises ``PoolTimeout`` if there is none within ``timeout`` seconds.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._owner_pid = os.getpid()

    def belongs_to_this_process(self) -> bool:
        """Return True if this process created the pool.

        A child process cannot use the threads and connections of a pool that existed before the fork.
        """
        return self._owner_pid == os.getpid()

    def schedule_task(self, task: Any, delay: float) -> None:
        """Schedule a task as psycopg does, but shorten the pause before a new attempt to connect."""
        super().schedule_task(
            task, min(delay, RECONNECT_SECONDS) if isinstance(task, AddConnection) else delay
        )

    def getconn(self, timeout: float | None = None) -> psycopg.Connection[Any]:
        """Return a working connection.

        If a connection is broken, the pool replaces it, and the next one is tried. This happens without a
        pause for the first ``max_size`` broken connections.
        """
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        broken = 0
        while True:
            connection: psycopg.Connection[Any] = super().getconn(max(0.0, deadline - time.monotonic()))
            try:
                if _has_unread_data(connection):
                    self.check_connection(connection)
                return connection
            except psycopg.Error:
                self.putconn(connection)  # the pool detects the broken connection and replaces it
            except BaseException:
                self.putconn(connection)
                raise
            broken += 1
            # If more connections were broken than the pool can hold, some of them were new. The server closes
            # new connections too, so wait before the next attempt.
            if broken > self.max_size:
                time.sleep(RECONNECT_SECONDS)


def _has_unread_data(connection: psycopg.Connection[Any]) -> bool:
    """Return True if data, or the end of the connection, has arrived while the connection was idle.

    A server that closes a connection sends a message or closes the socket. If the server has vanished, TCP
    keepalives make the kernel close the socket within a short time. So a connection without unread data is
    taken as working, and no statement is needed to test it.
    """
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    return bool(poller.poll(0))
