"""Identify, watch and end operating system processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_SECONDS = 0.02
INTERRUPT_SECONDS = 60.0  # time for an interrupted command to end its processes
TERMINATE_SECONDS = 30.0  # time for remaining processes to end after SIGTERM
KILL_SECONDS = 10.0  # time for killed processes to disappear


def process_start(pid: int) -> str | None:
    """Return the start time of a process in clock ticks since boot; None if it has ended.

    Pids are reused, so a pid alone does not identify a process. A pid together with a start time does.
    """
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] == "Z" else fields[19]


def _stat_fields(pid: int | str) -> list[str] | None:
    """Return the fields of /proc/PID/stat, beginning with the state of the process.

    Returns None if the process does not exist.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def die_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when the parent ends, even by SIGKILL.

    Call this function before exec.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def be_interrupted_with_parent() -> None:
    """Make the kernel send SIGINT to this process when the parent ends, and stop ignoring SIGINT.

    Call this function before exec.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


@contextlib.contextmanager
def ending_descendants() -> Iterator[None]:
    """Run the block, then end all processes that it started, including processes in other sessions.

    The first SIGINT, SIGTERM or SIGHUP raises SystemExit in the block. Later signals are ignored, so that
    they interrupt neither the cleanup of the block nor the end of its processes.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become children of this process
    _exit_on_first_signal()
    try:
        yield
    finally:
        _ignore_end_signals()
        end_remaining_descendants()


def _exit_on_first_signal() -> None:
    def exit_once(number: int, frame: types.FrameType | None) -> None:
        _ignore_end_signals()
        sys.exit(128 + number)

    _handle_end_signals(exit_once)


def _ignore_end_signals() -> None:
    # Set a handler that does nothing instead of SIG_IGN, because programs that the cleanup starts would
    # inherit SIG_IGN.
    _handle_end_signals(lambda number, frame: None)


def _handle_end_signals(handler: Callable[[int, types.FrameType | None], None]) -> None:
    for number in END_SIGNALS:
        # nohup and scripts (with &) ignore signals. Keep such a signal ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def run_interruptible(
    command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, reaps_orphans: bool = False
) -> int:
    """Run a command and return its exit status. If a signal ends this process, interrupt the command first.

    The interrupted command gets one SIGINT and INTERRUPT_SECONDS to clean up. The command runs in its own
    session. Otherwise Ctrl-C in a terminal would send it a second SIGINT, which would stop the cleanup.

    Set ``reaps_orphans`` inside `ending_descendants`. There, orphans become children of this process. They
    must be reaped, because the command may wait for their end.
    """
    child = subprocess.Popen(
        command, cwd=cwd, env=env, start_new_session=True, preexec_fn=be_interrupted_with_parent
    )
    try:
        if reaps_orphans:
            _reap_until_ended(child)
        return child.wait()
    except BaseException:
        interrupt(child, reaps_orphans)
        raise


def interrupt(child: subprocess.Popen[bytes], reaps_orphans: bool = False) -> None:
    """Send a child one SIGINT and wait for its end. Kill the child after INTERRUPT_SECONDS.

    With ``reaps_orphans``, ended orphans are reaped in the meantime.
    """
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGINT)
    deadline = time.monotonic() + INTERRUPT_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        if reaps_orphans:
            _reap(other_than=child.pid)
        time.sleep(POLL_SECONDS)
    if child.poll() is None:
        child.kill()
        child.wait()


def _reap_until_ended(child: subprocess.Popen[bytes]) -> None:
    while child.poll() is None:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_pid != child.pid:
            os.waitpid(ended.si_pid, 0)


def _reap(other_than: int = 0) -> None:
    """Collect the exit status of ended children.

    Stop at the child ``other_than``, whose exit status the caller collects.
    """
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            if ended.si_pid == other_than:
                return
            os.waitpid(ended.si_pid, 0)


def end_remaining_descendants(
    terminate_seconds: float = TERMINATE_SECONDS, kill_seconds: float = KILL_SECONDS
) -> None:
    """End all descendants of this process.

    Children get SIGTERM, so that they can stop their own children in order. Orphans become children of this
    process and then get SIGTERM too. Processes that remain after `terminate_seconds` get SIGKILL.
    """
    signalled: set[int] = set()
    deadline = time.monotonic() + terminate_seconds
    while descendants(os.getpid()) and time.monotonic() < deadline:
        for pid in set(_children(os.getpid())) - signalled:
            _send(pid, signal.SIGTERM)
            signalled.add(pid)
        time.sleep(POLL_SECONDS)
        _reap()
    deadline = time.monotonic() + kill_seconds
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            _send(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
        _reap()
    _reap()


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _children(pid: int) -> list[int]:
    return _living_children_by_parent().get(pid, [])


def descendants(pid: int) -> list[int]:
    """Return the living descendants of a process: its children, their children and so on."""
    by_parent, found, next_ones = _living_children_by_parent(), list[int](), [pid]
    while next_ones:
        below = by_parent.get(next_ones.pop(), [])
        found += below
        next_ones += below
    return found


def _living_children_by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        fields = _stat_fields(entry.name) if entry.name.isdigit() else None
        if fields is not None and fields[0] != "Z":
            found.setdefault(int(fields[1]), []).append(int(entry.name))
    return found
