"""What holds a workload's GPUs where its shim was killed: the shim's parent, which does nothing but wait."""

from __future__ import annotations

import ctypes
import os
import signal
import time

from agent.shim.process_tree import cgroup_members

TYPE_CHECKING = False  # not from typing: it would double this process's memory
if TYPE_CHECKING:
    from typing import Any

PR_SET_CHILD_SUBREAPER = 36
GUARD_POLL_SECONDS = 1.0


def fork_guard(spec: dict[str, Any]) -> None:
    """Return in a child, which is to be the shim. The calling process stays behind as its guard and never returns.

    It keeps the GPU locks (``own_fds`` but the first, which says that the shim lives) until the shim has ended by itself: that does
    so only when nothing of the workload is left. Where it was killed, all that it kept becomes the guard's own children, whatever
    they call themselves and whatever they have closed; the first process of a sandbox ends after all others in there. So the locks
    are kept until the last of them is gone, and no process of the workload needs to have them.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the shim is told by its agent, and ends before this does
    shim = os.fork()
    if shim == 0:
        return
    for alive in spec.get("own_fds", [])[:1]:
        os.close(alive)
    if shim_wait_status(shim) != 0:
        wait_until_empty(spec.get("cgroup_procs", []))
    os._exit(0)


def shim_wait_status(shim: int) -> int:
    """The shim's wait status, once it has ended. Nothing else can be a child while it lives."""
    return os.waitpid(shim, 0)[1]


def wait_until_empty(cgroup_procs: list[str]) -> None:
    """Until nothing is left below this process, nor in the workload's control groups."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            if not cgroup_members(cgroup_procs):
                return
            time.sleep(GUARD_POLL_SECONDS)
