"""Runs the operator's own diagnostic program."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time

from agent.diagnostics.builtin_checks import MIB
from agent.diagnostics.check_progress import CheckProgress
from agent.host import processes

PR_SET_CHILD_SUBREAPER = 36


MAX_OUTPUT_BYTES = 4096  # only the last bytes of the program's output are kept


def run_operator_program(progress: CheckProgress, name: str, command: list[str], seconds: float) -> None:
    """Run the operator's program for at most ``seconds``. The check passes if its exit status is 0.

    The detail of a failed check is the end of the program's output. Raises DiagnosticStopped after SIGTERM.
    """
    progress.step(name)
    # Processes that the program leaves behind become children of this process.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    printed, until = b"", began + seconds
    try:
        while process.poll() is None:
            progress.raise_if_stopped()
            if time.monotonic() > until:
                progress.report_check(name, False, {"seconds": round(seconds)}, "it did not end in time")
                return
            time.sleep(0.1)
            printed = (printed + (process.stdout.read(MIB) or b""))[-MAX_OUTPUT_BYTES:]
        printed = (printed + (process.stdout.read(MIB) or b""))[-MAX_OUTPUT_BYTES:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        kill_descendants()
    detail = " ".join(printed.decode("utf-8", "replace").split())[-200:]
    numbers = {"status": process.returncode, "seconds": round(time.monotonic() - began, 1)}
    progress.report_check(name, process.returncode == 0, numbers, detail if process.returncode else "")


def kill_descendants() -> None:
    """Kill all descendants of this process, also in other sessions, and wait until they have ended.

    The wait is needed because a descendant may use the GPU until it has ended.
    """
    while True:
        for process in processes.descendants(processes.scan(), os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(0.02)
