"""Reads the processes of this host from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this host."""

    pid: int
    parent: int
    name: str
    # Start time in clock ticks since the boot. It distinguishes processes that had the same pid in one boot.
    start_ticks: int
    cpu_seconds: float  # CPU time of the process and of its children that have ended


def read_process(pid: int | str) -> Process | None:
    """Return the living process with this pid; None if there is none or /proc hides it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # PermissionError: /proc is mounted with hidepid
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    # The state Z (zombie) of a process with several threads means only that its first thread has ended.
    if fields[0] in "ZX" and int(fields[17]) <= 1:
        return None
    cpu = sum(int(field) for field in fields[11:15]) / TICKS_PER_SECOND
    return Process(int(pid), int(fields[1]), name, int(fields[19]), cpu)


def scan() -> dict[int, Process]:
    """Return all living processes by pid."""
    found = (read_process(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return {process.pid: process for process in found if process is not None}


def user_ids() -> set[int]:
    """Return the uids of the users who have a process on this host."""
    found = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        number = user_id_of(int(entry))
        if number is not None:
            found.add(number)
    return found


def user_id_of(pid: int) -> int | None:
    """Return the real uid of a process; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(status.split("\nUid:", 1)[1].split()[0])


def descendants(everything: dict[int, Process], root: int) -> list[Process]:
    """Return the children of ``root``, their children, and so on. ``everything``: the result of ``scan``."""
    children: dict[int, list[Process]] = {}
    for process in everything.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.append(child)
            waiting.append(child.pid)
    return found


def environment_entries(pid: int) -> list[bytes]:
    """Return the NAME=VALUE entries of a process's initial environment; [] if they are unreadable.

    If the first thread of a process has ended, only its other threads show the environment. Therefore all
    threads are tried.
    """
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return []
    for thread in threads:
        try:
            found = Path(f"/proc/{pid}/task/{thread}/environ").read_bytes()
        except OSError:
            continue  # the thread has ended, or this user may not read it
        if found:
            return found.split(b"\0")
    return []


def environment_value(pid: int, name: str) -> str | None:
    """Return the value of a variable in a process's initial environment; None if missing or unreadable."""
    start = f"{name}=".encode()
    values = (entry[len(start) :] for entry in environment_entries(pid) if entry.startswith(start))
    return next((value.decode("utf-8", "replace") for value in values), None)


def is_alive(pid: int, start_ticks: int) -> bool:
    """Return True if the process with this pid and this start time is alive.

    Return False if the process has ended, even if another process has got its pid.
    """
    process = read_process(pid)
    return process is not None and process.start_ticks == start_ticks
