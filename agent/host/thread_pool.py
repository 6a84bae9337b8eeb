"""The agent's threads: they are there before any workload is. On a host where workloads have used up what there may be of processes
and threads, an agent that needed one more would end, and all work of the host with its leases."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

THREAD_COUNT = 12  # of what is waited for beside the event loop at once


def started_pool(count: int = THREAD_COUNT) -> ThreadPoolExecutor:
    """So many threads, each of them started. Raises RuntimeError where they are not to be had."""
    threads = ThreadPoolExecutor(count, thread_name_prefix="agent")
    together = threading.Barrier(count + 1)  # a pool starts none while another is idle
    for _ in range(count):
        threads.submit(together.wait)
    together.wait()
    return threads


def watch_children_without_threads() -> None:
    """Python 3.11 waits for each child process in a thread of its own; later versions don't where the kernel has pidfds."""
    if sys.version_info < (3, 12):
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError:  # Linux before 5.3
            return
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.get_event_loop_policy().set_child_watcher(watcher)
