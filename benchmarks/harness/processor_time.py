"""Measure the processor time of this process and of its database session."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

USER_TICKS, SYSTEM_TICKS = 11, 12  # places in /proc/PID/stat, counted after the name of the program


@dataclass
class Timer:
    """Add up the seconds and the processor seconds of ``with`` blocks."""

    seconds: float = 0.0
    cpu: float = 0.0

    def __enter__(self) -> Timer:
        self._began, self._cpu = time.perf_counter(), processor_seconds()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds += time.perf_counter() - self._began
        self.cpu += processor_seconds() - self._cpu


def processor_seconds() -> float:
    """Return the processor time of this process and of its database session, which run on one machine."""
    return time.process_time() + (session_seconds() or 0.0)


def session_seconds() -> float | None:
    """Return the processor time of the database session; None if the database is on another machine."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        session = cursor.fetchone()[0]
    stat = Path(f"/proc/{session}/stat")
    if not stat.exists():
        return None
    # The fields after the name of the program, which may contain spaces. See proc(5).
    fields = stat.read_text().rpartition(")")[2].split()
    ticks = int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
    return ticks / os.sysconf("SC_CLK_TCK")
