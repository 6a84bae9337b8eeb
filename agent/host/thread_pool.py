"""Creates the agent's threads before any workload runs.

If workloads have used up all processes and threads of the host, no new thread can be started. Without this
module, the agent would then fail as soon as it needs a thread, and the leases of all its runs would expire.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

THREAD_COUNT = 12  # largest number of blocking calls at the same time


def started_pool(count: int = THREAD_COUNT) -> ThreadPoolExecutor:
    """Return a pool with ``count`` threads that have all been started.

    Raises RuntimeError if that is not possible.
    """
    threads = ThreadPoolExecutor(count, thread_name_prefix="agent")
    # The barrier keeps each thread busy until all have started. Otherwise the pool would reuse idle threads.
    barrier = threading.Barrier(count + 1)
    for _ in range(count):
        threads.submit(barrier.wait)
    barrier.wait()
    return threads


def watch_children_without_threads() -> None:
    """Make asyncio watch child processes by pidfds if the kernel supports them.

    By default Python 3.11 starts a thread for each child.
    """
    if sys.version_info < (3, 12):
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError:  # Linux before 5.3
            return
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.get_event_loop_policy().set_child_watcher(watcher)
