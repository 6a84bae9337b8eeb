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


MAX_OUTPUT_BYTES = 4096  # bytes that are kept of what an operator's diagnostic prints


def run_operator_program(look: CheckProgress, name: str, command: list[str], seconds: float) -> None:
    """The operator's own program: 0 is passed, anything else failed, with what it printed last."""
    look.step(name)
    ctypes.CDLL(None, use_errno=True).prctl(
        PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
    )  # what it leaves behind comes to us
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
            look.raise_if_stopped()
            if time.monotonic() > until:
                look.found(name, False, {"seconds": round(seconds)}, "it did not end in time")
                return
            time.sleep(0.1)
            printed = (printed + (process.stdout.read(MIB) or b""))[-MAX_OUTPUT_BYTES:]
        printed = (printed + (process.stdout.read(MIB) or b""))[-MAX_OUTPUT_BYTES:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        kill_descendants()
    said = " ".join(printed.decode("utf-8", "replace").split())[-200:]
    numbers = {"status": process.returncode, "seconds": round(time.monotonic() - began, 1)}
    look.found(name, process.returncode == 0, numbers, said if process.returncode else "")


def kill_descendants() -> None:
    """Ends whatever a program has started, in other sessions too, and waits for its death: it may use the GPU until then."""
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
