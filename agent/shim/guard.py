"""Keeps the GPU locks of a workload whose shim was killed.

The guard is the parent of the shim and only waits.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

from agent.shim.process_tree import cgroup_members

TYPE_CHECKING = False  # not imported from typing, because the import would double this process's memory
if TYPE_CHECKING:
    from typing import Any

PR_SET_CHILD_SUBREAPER = 36
GUARD_POLL_SECONDS = 1.0


def fork_guard(spec: dict[str, Any]) -> None:
    """Fork: return in the child process, which becomes the shim.

    The calling process becomes the guard of the shim and never returns. The guard holds the GPU locks, which
    are the descriptors in ``own_fds`` except the first. The guard closes the first one, because this lock
    shows that the shim lives.

    A shim ends normally only when no process of the workload remains. If the shim is killed, the processes of
    the workload become children of the guard, which is their subreaper. The guard holds the locks until the
    last of these processes has ended. Therefore the workload's processes do not need the locks themselves.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        # Ignore these signals: the agent stops the shim by an order, and the guard must end after the shim.
        signal.signal(number, signal.SIG_IGN)
    shim = os.fork()
    if shim == 0:
        return
    for liveness_fd in spec.get("own_fds", [])[:1]:
        os.close(liveness_fd)
    if shim_wait_status(shim) != 0:
        wait_until_empty(spec.get("cgroup_procs", []))
    os._exit(0)


def shim_wait_status(shim: int) -> int:
    """Wait for the shim and return its wait status. The guard has no other child while the shim lives."""
    return os.waitpid(shim, 0)[1]


def wait_until_empty(cgroup_procs: list[str]) -> None:
    """Wait until this process has no descendants and the workload's control groups are empty."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            if not cgroup_members(cgroup_procs):
                return
            time.sleep(GUARD_POLL_SECONDS)
