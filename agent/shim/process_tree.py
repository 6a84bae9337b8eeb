"""Lists the processes of a workload, sends signals to them and reads their exit statuses."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # not imported from typing, because the import would double this process's memory
if TYPE_CHECKING:
    from collections.abc import Iterator


def process_stat(pid: int | str) -> tuple[int, int, str, str] | None:
    """Return (parent pid, start time in clock ticks, state letter, name) of a process; None if it has ended.

    If the main thread has ended before other threads, the kernel reports the state Z. In this case the result
    has the state S, because the process is still running.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), int(fields[19]), fields[0] if int(fields[17]) <= 1 else "S", name


def descendants(root: int) -> list[tuple[int, int, str]]:
    """Return [(pid, depth, name)] of every living process below ``root``.

    ``root`` must be a subreaper. Otherwise orphaned processes would not stay below it.
    """
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = process_stat(entry)
            if stat is not None and stat[2] not in "ZX":
                children.setdefault(stat[0], []).append((int(entry), stat[3]))
    found: list[tuple[int, int, str]] = []
    level = [(root, 0)]
    while level:
        pid, depth = level.pop()
        for child, name in children.get(pid, ()):
            found.append((child, depth + 1, name))
            level.append((child, depth + 1))
    return found


def ended_children() -> Iterator[tuple[int, int]]:
    """Yield (pid, wait status) of each child that has ended since the last call. The call never waits."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def has_signal_handler(pid: int, number: int) -> bool:
    """Return True if the process has a handler for the signal. Without a handler, it may be killed."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return False


def out_of_memory_kills(path: str = "/proc/vmstat") -> int | None:
    """Return the number of out-of-memory kills, or None if it is unknown.

    ``path``: /proc/vmstat for the whole host; memory.events (v2) or memory.oom_control (v1) for a control
    group.
    """
    try:
        with open(path) as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except OSError:
        return None
    return None


def cgroup_members(files: list[str]) -> set[int]:
    """Return the pids in control groups. ``files``: the paths of the groups' cgroup.procs files."""
    found: set[int] = set()
    for name in files:
        try:
            with open(name) as file:
                found.update(int(line) for line in file)
        except OSError:
            continue  # the group was removed, so it has no process
    found.discard(0)  # 0 stands for a process of another pid namespace
    return found
