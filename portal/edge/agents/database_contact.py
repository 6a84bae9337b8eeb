"""Keep the contact of this edge process with the database.

Each contact writes the leases that were renewed from memory, and moves the end of the time in which this
process may renew leases from memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time

import structlog
from django.db import DatabaseError

from portal.edge.agents import database_calls
from portal.edge.agents.database_calls import EdgeProcess
from portal.edge.agents.lease_memory import LeaseMemory
from portal.edge.runtime import metrics
from portal.edge.runtime.database_threads import DatabaseThreads
from scheduler.coordination.leases import lease_rules

log = structlog.get_logger(__name__)

MAX_CONTACT_INTERVAL_SECONDS = 5.0
# A report that the database has not answered after this time is answered from memory. It is shorter than the
# time after which an agent gives up a connection that does not answer its ping.
MAX_ANSWER_SECONDS = 5.0
END_SECONDS = 2.0


def boottime() -> float:
    """Return CLOCK_BOOTTIME in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def answer_seconds() -> float:
    """Return the time after which the database counts as away if it has not answered."""
    return min(MAX_ANSWER_SECONDS, lease_rules().poll_seconds)


class DatabaseContact:
    """The contact of one edge process with the database. ``away`` is True while the database does not answer.

    The calls have a thread of their own, because all other threads may wait for the database.
    """

    def __init__(self, memory: LeaseMemory, address: str) -> None:
        self._memory = memory
        self._threads = DatabaseThreads(1, "contact")
        self._process = EdgeProcess(secrets.token_hex(16), f"{socket.gethostname()}:{address}", boottime())
        self._call: asyncio.Task[None] | None = None
        self.away = False

    async def run(self) -> None:
        """Contact the database every few seconds until the task is cancelled."""
        interval = min(MAX_CONTACT_INTERVAL_SECONDS, lease_rules().margin_seconds / 4)
        while True:
            await self.contact()
            await asyncio.sleep(interval)

    async def contact(self) -> None:
        """Contact the database once, and set ``away``. A call that still waits is not repeated."""
        if self._call is None:
            self._call = asyncio.create_task(self._record())
        done, _ = await asyncio.wait((self._call,), timeout=answer_seconds())
        if not done:
            self._note_away("it does not answer")
            return
        ended, self._call = self._call, None
        try:
            ended.result()
        except (DatabaseError, OSError) as error:
            self._note_away(str(error).partition("\n")[0])
            return
        if self.away:
            log.info("the database answers again")
        self.away = False
        metrics.DATABASE_AWAY.set(0)

    def _note_away(self, why: str) -> None:
        if not self.away:
            log.warning("the database is away: leases are renewed from memory, nothing is placed", error=why)
        self.away = True
        metrics.DATABASE_AWAY.set(1)

    async def _record(self) -> None:
        # The contact has the time at which the renewals were read. The call may wait for the database, and
        # later renewals are not part of it.
        asked_at, renewals = boottime(), self._memory.unwritten()
        limits = await self._threads.run_repeatable(
            database_calls.record_contact, self._process, renewals, asked_at
        )
        self._memory.written(renewals)
        self._memory.renews_until = asked_at + limits.seconds
        self._memory.maintenance_until = asked_at + limits.maintenance_seconds

    async def close(self) -> None:
        """Record that this process renews no more leases, if the database answers in time."""
        if self._call is not None:
            await asyncio.wait((self._call,), timeout=END_SECONDS)
        with contextlib.suppress(DatabaseError, TimeoutError, OSError):
            if self._call is None or self._call.done():
                async with asyncio.timeout(END_SECONDS):
                    await self._threads.run(
                        database_calls.record_end, self._process, self._memory.unwritten()
                    )
        self._threads.abandon()
