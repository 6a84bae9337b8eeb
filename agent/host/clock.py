"""Reads the clock and the id of the current boot."""

from __future__ import annotations

import time
from pathlib import Path


def boot_id() -> str:
    """Return the random id of the current boot. If the id has changed, all earlier processes have ended."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boottime() -> float:
    """Return the seconds since the boot (CLOCK_BOOTTIME). They include sleep, and the clock never jumps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
