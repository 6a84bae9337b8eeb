"""Reads the clock and the id of the current boot."""

from __future__ import annotations

import time
from pathlib import Path


def boot_id() -> str:
    """Return a random id of the current boot. A changed id proves that no earlier process runs any more."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boottime() -> float:
    """Return seconds on CLOCK_BOOTTIME, which counts through sleep and never jumps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
