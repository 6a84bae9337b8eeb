"""What time it is by the wall clock, and by the one that nobody can set; and whether rows that were just locked share it.

Beside ``scheduler.coordination.clock_correction``, which moves what is being counted along where the wall clock was set.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scheduler.models import ClockReading

CLOCK_STEP_THRESHOLD = timedelta(seconds=1)  # less is how clocks are kept right
MAX_READ_SECONDS = (
    0.05  # seconds in which both clocks are read, or once more: what lies between two readings is no setting
)


class ClockStepped(Exception):
    """The clock was set since the time at hand was read, and the rows that were just locked have gone along: it is not theirs."""


@dataclass(frozen=True, slots=True)
class ClockSample:
    """The wall clock, and beside it the seconds on CLOCK_BOOTTIME: of which boot and time name space, since those of another can't
    be compared with it."""

    wall: datetime
    machine: str
    uptime: float

    def stepped_since(self, before: ClockSample) -> timedelta:
        """By how much the wall clock was set from one moment to this one; nothing for moments of two machines."""
        if self.machine != before.machine:
            return timedelta()
        return self.wall - before.wall - timedelta(seconds=self.uptime - before.uptime)

    def now(self) -> datetime:
        """What the wall clock would say now if nobody had set it since."""
        return self.wall + timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME) - self.uptime)


ClockSource = Callable[[], ClockSample]
_current_sample: ContextVar[ClockSample | None] = ContextVar("at_hand", default=None)


def read_clocks() -> ClockSample:
    """Both clocks of this machine, now."""
    while True:
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        wall = datetime.fromtimestamp(time.time(), UTC)
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        if after - before <= MAX_READ_SECONDS:
            return ClockSample(wall, _machine(), after)


@functools.cache
def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = os.readlink("/proc/self/ns/time") if os.path.exists("/proc/self/ns/time") else ""
    return f"{boot} {space}".strip()


def last_clock_sample() -> ClockSample | None:
    """The moment that the rows share."""
    row = ClockReading.objects.filter(pk=1).values_list("wall", "machine", "uptime").first()
    return ClockSample(*row) if row else None


@contextmanager
def decide_at(moment: ClockSample) -> Iterator[None]:
    """Within it every lock asks whether what was locked shares this moment."""
    token = _current_sample.set(moment)
    try:
        yield
    finally:
        _current_sample.reset(token)


def check_clock_sample() -> None:
    """Called where rows were locked. Whoever moves them locks them all, so none moves now. Raises ClockStepped where they have moved
    since the moment at hand; without one there is nothing to check."""
    moment = _current_sample.get()
    last = last_clock_sample() if moment is not None else None
    if moment is not None and last is not None and abs(moment.stepped_since(last)) >= CLOCK_STEP_THRESHOLD:
        raise ClockStepped("the clock was set after the time was read")
