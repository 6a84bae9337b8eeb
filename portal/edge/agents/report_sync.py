"""Answer the reports of agents from the database, or from memory while the database does not answer.

The database handles one report of a connection at a time, and always the newest one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from django.db import DatabaseError, DataError

from agent.protocol import Desired, Observed
from portal.edge.agents import database_calls
from portal.edge.agents.connection import AgentConnection
from portal.edge.agents.database_contact import DatabaseContact, answer_seconds, boottime
from portal.edge.agents.lease_memory import LeaseMemory
from portal.edge.runtime import metrics
from portal.edge.runtime.database_threads import DatabaseThreads

log = structlog.get_logger(__name__)


class MissedFramesError(Exception):
    """Frames of this connection were dropped while the database was away.

    The agent sends them again on a new connection.
    """


class ReportSync:
    """Answers the reports of agents. ``on_answer`` receives each answer with its report."""

    def __init__(
        self,
        threads: DatabaseThreads,
        memory: LeaseMemory,
        contact: DatabaseContact,
        is_current: Callable[[AgentConnection], bool],
        on_answer: Callable[[AgentConnection, Observed, Desired], None],
    ) -> None:
        self._threads = threads
        self._memory = memory
        self._contact = contact
        self._is_current = is_current
        self._on_answer = on_answer

    async def handle(self, connection: AgentConnection, report: Observed) -> None:
        """Answer a report.

        Raises MissedFramesError and the errors of ``database_calls.sync``. A DatabaseError is raised only if
        the report may not be answered from memory.
        """
        heard_at = boottime()
        connection.unsynced = (report, heard_at)
        if connection.syncing is not None and connection.syncing.done():
            _finish(connection)  # an earlier report that was answered from memory
        if connection.syncing is None:
            connection.syncing = asyncio.create_task(self._sync(connection))
        seconds = 0.0 if self._contact.away else answer_seconds()
        done, _ = await asyncio.wait((connection.syncing,), timeout=seconds)
        if not done:
            if self._renew(connection, report, heard_at):
                return
            await asyncio.wait((connection.syncing,))
        error = _finish(connection)
        if error is not None and not self._renew(connection, report, heard_at):
            raise error

    async def _sync(self, connection: AgentConnection) -> None:
        """Let the database handle the newest report until there is no newer one."""
        while connection.unsynced is not None:
            (report, heard_at), connection.unsynced = connection.unsynced, None
            with metrics.SYNC_SECONDS.time():
                desired = await self._threads.run_repeatable(
                    database_calls.sync, connection.host, connection.credentials, report
                )
            if not self._is_current(connection):
                return
            self._memory.confirm(
                connection.host, report, connection.credentials, connection.stream_key, desired, heard_at
            )
            if connection.missed_frames:
                raise MissedFramesError
            self._on_answer(connection, report, desired)

    def _renew(self, connection: AgentConnection, report: Observed, heard_at: float) -> bool:
        """Answer a report from memory. Return False if this is not allowed."""
        renewal = self._memory.renewal(connection.host.id, report, heard_at)
        if renewal is None:
            return False
        metrics.RENEWED_FROM_MEMORY.inc()
        self._on_answer(connection, report, renewal)
        return True


def _finish(connection: AgentConnection) -> Exception | None:
    """Remove the ended task of a connection. Return the error if the database was away.

    Raises every other error.
    """
    ended, connection.syncing = connection.syncing, None
    assert ended is not None
    try:
        ended.result()
    except DataError:
        raise
    except (DatabaseError, OSError) as error:
        return error
    return None


async def end_sync(connection: AgentConnection) -> None:
    """Cancel the task of a connection that ends. A call that runs in a thread is not interrupted."""
    connection.unsynced = None
    if connection.syncing is not None:
        connection.syncing.cancel()
        await asyncio.wait((connection.syncing,))
        if not connection.syncing.cancelled() and (error := connection.syncing.exception()) is not None:
            log.info("last report of a connection not handled", host=connection.host.name, error=str(error))
