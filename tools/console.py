"""Print the steps of `./run`, run commands quietly, and report errors in one line."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

STARTED_AT = time.monotonic()
POLL_SECONDS = 0.03
SHOWN_ERROR_LINES = 15


class RunError(Exception):
    """An error that the caller of `./run` must see; the message is printed without a traceback."""


def say(text: str = "") -> None:
    """Print one line and flush it, so that it stays in order with the output of other programs."""
    print(text, flush=True)


@contextlib.contextmanager
def timed_step(text: str) -> Iterator[None]:
    """Run the block, then print one line with its duration."""
    begin = time.monotonic()
    yield
    say(f"  {text:<46} {time.monotonic() - begin:6.1f} s")


def run_quietly(command: Sequence[str], **options: object) -> None:
    """Run a command and show its output only if it fails. Raises RunError."""
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()[-SHOWN_ERROR_LINES:]
        raise RunError(f"this failed: {shlex.join(map(str, command))}\n" + "\n".join(lines))


def wait_until(
    ready: Callable[[], bool], what: str, seconds: float, alive: Callable[[], bool] = lambda: True
) -> None:
    """Wait until `ready` returns True. Raises RunError after `seconds`, or when `alive` returns False."""
    deadline = time.monotonic() + seconds
    while not ready():
        if not alive():
            raise RunError(f"{what} ended while starting")
        if time.monotonic() > deadline:
            raise RunError(f"{what} does not answer after {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


def last_lines(log: Path, count: int) -> str:
    """Return the last lines of a log file."""
    if not log.exists():
        return "(empty)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
