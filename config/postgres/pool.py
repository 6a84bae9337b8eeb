"""Keep a pool of database connections that reconnects quickly after the database was unavailable.

psycopg's pool waits 1, 2, 4 ... seconds between attempts to connect, and between two broken connections.
After a restart that takes half a second, the database would be unavailable for 3 s. After an outage of five
minutes, it could be unavailable for another five minutes. An attempt is cheap, so this pool retries at a
short, constant interval.
"""

from __future__ import annotations

import os
import select
import time
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool
from psycopg_pool.pool import AddConnection

RECONNECT_SECONDS = 0.1  # between two attempts to replace a connection


class FastReconnectPool(ConnectionPool[psycopg.Connection[Any]]):
    """A pool whose ``getconn`` returns a working connection or raises ``PoolTimeout`` after ``timeout``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._owner_pid = os.getpid()

    def belongs_to_this_process(self) -> bool:
        """Return True if this process created the pool.

        After a fork its threads and connections are unusable.
        """
        return self._owner_pid == os.getpid()

    def schedule_task(self, task: Any, delay: float) -> None:
        """Schedule a task as psycopg does, but with a shorter pause before a reconnection."""
        super().schedule_task(
            task, min(delay, RECONNECT_SECONDS) if isinstance(task, AddConnection) else delay
        )

    def getconn(self, timeout: float | None = None) -> psycopg.Connection[Any]:
        """Return a working connection.

        A broken connection is replaced, and the next connection is tried without a pause.
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
            # More connections broke than the pool holds: the server closes new connections at once.
            if broken > self.max_size:
                time.sleep(RECONNECT_SECONDS)


def _has_unread_data(connection: psycopg.Connection[Any]) -> bool:
    """Return True if data or the end of the connection arrived while the connection was idle.

    A server that closes a connection sends a message or closes the socket. If the server has vanished, the
    kernel closes the socket, because TCP keepalives are enabled. So an idle connection without data needs no
    statement as a check.
    """
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    return bool(poller.poll(0))
