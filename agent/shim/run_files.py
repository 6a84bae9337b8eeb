"""What the shim reads and writes, and the clock and the boot by which it is known."""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False  # not from typing: it would double this process's memory
if TYPE_CHECKING:
    from typing import Any


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def read_json(path: str) -> dict[str, Any] | None:
    """The JSON object in ``path``, or None while there is none."""
    try:
        with open(path) as file:
            found: dict[str, Any] = json.load(file)
            return found
    except (FileNotFoundError, ValueError):
        return None


def write_json(path: str, value: dict[str, Any], mode: int = 0o600) -> None:
    """Atomic and durable: a reader sees the old file, the new file or none. A link is replaced, not followed."""
    new = path + ".new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def log_error(text: str) -> None:
    """Say it in shim.err. What a full disk does not take is lost, and nobody's workload with it."""
    try:
        os.write(2, text.encode() + b"\n")
    except OSError:
        return
