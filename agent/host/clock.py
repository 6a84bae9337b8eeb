"""Reads the clock and the id of the current boot."""

from __future__ import annotations

import time
from pathlib import Path


def boot_id() -> str:
    """Random per boot of the kernel: a new one proves that nothing of before runs any more."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME: counts through sleep, never jumps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
