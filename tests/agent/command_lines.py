"""Read the command lines of processes that may end at any time."""

from __future__ import annotations

from pathlib import Path


def command_line(pid: int) -> list[bytes]:
    """Return the program and the arguments of a process; [] if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []
