"""Read the wall clock and CLOCK_BOOTTIME together, and detect that the wall clock was set.

Every function that locks rows checks that the wall clock was not set after the caller read the time.
``scheduler.coordination.clock_correction`` moves the stored deadlines when the wall clock was set.
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

CLOCK_STEP_THRESHOLD = timedelta(seconds=1)  # smaller steps are NTP adjustments
# Both clocks are read again if reading them takes longer than this. A pause between the two readings would
# look like a clock step.
MAX_READ_SECONDS = 0.05


class ClockStepped(Exception):
    """The wall clock was set after the caller read the time.

    The caller must read the time again, because the locked rows already use the new time.
    """


@dataclass(frozen=True, slots=True)
class ClockSample:
    """A reading of the wall clock (``wall``) and of CLOCK_BOOTTIME (``uptime``, in seconds).

    ``machine`` identifies the boot and the time namespace. Two samples can be compared only if their
    ``machine`` is equal.
    """

    wall: datetime
    machine: str
    uptime: float

    def stepped_since(self, before: ClockSample) -> timedelta:
        """Return the time by which the wall clock was set since ``before``. Negative means backwards.

        Return zero if ``before`` is a sample of another machine.
        """
        if self.machine != before.machine:
            return timedelta()
        return self.wall - before.wall - timedelta(seconds=self.uptime - before.uptime)

    def now(self) -> datetime:
        """Return the current time of the wall clock as if nobody had set it since this sample."""
        return self.wall + timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME) - self.uptime)


ClockSource = Callable[[], ClockSample]
_current_sample: ContextVar[ClockSample | None] = ContextVar("clock sample", default=None)


def read_clocks() -> ClockSample:
    """Read both clocks of this machine."""
    while True:
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        wall = datetime.fromtimestamp(time.time(), UTC)
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        if after - before <= MAX_READ_SECONDS:
            return ClockSample(wall, _machine(), after)


@functools.cache
def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/time") if os.path.exists("/proc/self/ns/time") else ""
    return f"{boot} {namespace}".strip()


def last_clock_sample() -> ClockSample | None:
    """Return the sample that the database stores, or None if no sample was stored yet.

    The stored deadlines are correct if the wall clock was not set after this sample.
    """
    row = ClockReading.objects.filter(pk=1).values_list("wall", "machine", "uptime").first()
    return ClockSample(*row) if row else None


@contextmanager
def decide_at(sample: ClockSample) -> Iterator[None]:
    """Make every lock in this context check that the clock was not set since ``sample``."""
    token = _current_sample.set(sample)
    try:
        yield
    finally:
        _current_sample.reset(token)


def check_clock_sample() -> None:
    """Raise ClockStepped if the clock was set since the sample of ``decide_at``.

    Call this function after rows were locked. A clock correction locks all rows that it changes, so it
    cannot change rows that the caller has locked. Outside ``decide_at`` this function does nothing.
    """
    sample = _current_sample.get()
    last = last_clock_sample() if sample is not None else None
    if sample is not None and last is not None and abs(sample.stepped_since(last)) >= CLOCK_STEP_THRESHOLD:
        raise ClockStepped("the clock was set after the time was read")
