"""Report the processes of the server to Redis, each with its role, version and the time of its last report.

A process reports from its main loop, so a process whose loop hangs stops reporting. A report expires. While
Redis is unavailable, it is unknown which processes run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import redis
import structlog

from scheduler.state import nudge

log = structlog.get_logger(__name__)

PROCESS_ROLES = ("web", "edge", "engine", "worker", "beat")
PROCESS_KEY = f"{nudge.SITE}:process:"
REPORT_INTERVAL_SECONDS = 10.0
REPORT_TTL_SECONDS = 60
HANG_SECONDS = 30.0  # a process whose main loop has not reported for this long hangs


def _product_version() -> str:
    project = Path(__file__).resolve().parent.parent.parent / "pyproject.toml"
    return str(tomllib.loads(project.read_text())["project"]["version"])


VERSION = _product_version()


@dataclass(frozen=True)
class ReportedProcess:
    """A process that has reported within the last minute. Times are seconds since the epoch."""

    role: str
    host: str
    pid: int
    version: str
    started_at: float
    reported_at: float


class ProcessReport:
    """The report of this process. Its main loop calls ``send`` every REPORT_INTERVAL_SECONDS."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.host, self.pid, self.started_at = socket.gethostname(), os.getpid(), time.time()
        self._last_sent = time.monotonic()

    @property
    def key(self) -> str:
        return f"{PROCESS_KEY}{self.role}:{self.host}:{self.pid}"

    @property
    def seconds_since_last(self) -> float:
        """Return the seconds since the main loop reported last, even if Redis was unavailable then."""
        return time.monotonic() - self._last_sent

    def send(self) -> None:
        """Store the report in Redis. Errors of Redis are only logged."""
        self._last_sent = time.monotonic()
        report = ReportedProcess(self.role, self.host, self.pid, VERSION, self.started_at, time.time())
        try:
            nudge.redis_connection().set(self.key, json.dumps(asdict(report)), ex=REPORT_TTL_SECONDS)
        except redis.RedisError as error:
            log.info("process not reported", role=self.role, error=str(error))

    def send_if_due(self) -> None:
        """Store the report if the last one is older than REPORT_INTERVAL_SECONDS."""
        if self.seconds_since_last >= REPORT_INTERVAL_SECONDS:
            self.send()

    def withdraw(self) -> None:
        """Delete the report, because the process ends. Without Redis, the report expires."""
        with contextlib.suppress(redis.RedisError):
            nudge.redis_connection().delete(self.key)


async def report_until_cancelled(role: str) -> None:
    """Report this process from its event loop until the task is cancelled."""
    report = ProcessReport(role)
    try:
        while True:
            await asyncio.to_thread(report.send)
            await asyncio.sleep(REPORT_INTERVAL_SECONDS)
    finally:
        await asyncio.to_thread(report.withdraw)


def reported_processes() -> list[ReportedProcess] | None:
    """Return the processes that reported within the last minute, by role; None without Redis."""
    connection = nudge.redis_connection()
    try:
        keys = list(connection.scan_iter(match=f"{PROCESS_KEY}*", count=1000))
        found = cast("list[bytes | None]", connection.mget(keys)) if keys else []
    except redis.RedisError:
        return None
    reports = [ReportedProcess(**json.loads(text)) for text in found if text is not None]
    return sorted(reports, key=lambda each: (PROCESS_ROLES.index(each.role), each.host, each.pid))
