"""Reads and writes the files of a run, the boot clock and the boot id."""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False  # not imported from typing, because the import would double this process's memory
if TYPE_CHECKING:
    from typing import Any


def boottime() -> float:
    """Return the seconds since the boot (CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def read_json(path: str) -> dict[str, Any] | None:
    """Return the JSON object in ``path``, or None if the file is missing or incomplete."""
    try:
        with open(path) as file:
            value: dict[str, Any] = json.load(file)
            return value
    except (FileNotFoundError, ValueError):
        return None


def write_json(path: str, value: dict[str, Any], mode: int = 0o600) -> None:
    """Write JSON atomically and durably. A symbolic link at ``path`` is replaced, not followed."""
    new = path + ".new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def log_error(text: str) -> None:
    """Write a line to shim.err. On a full disk the line is lost without an error."""
    try:
        os.write(2, text.encode() + b"\n")
    except OSError:
        return
