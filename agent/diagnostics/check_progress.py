"""Prints the progress of one diagnostic as JSON, with one object per line."""

from __future__ import annotations

import json
from typing import Any


class DiagnosticStopped(Exception):
    """SIGTERM has asked the diagnostic to stop, because a workload needs the GPU."""


class CheckProgress:
    """The progress of one diagnostic: its failed checks, and whether SIGTERM has asked it to stop."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.unknown = ""  # reason why an essential check could not run
        self._stop = False

    def stop(self, *_: object) -> None:
        """Handle SIGTERM: the next call of ``raise_if_stopped`` raises DiagnosticStopped."""
        self._stop = True

    def raise_if_stopped(self) -> None:
        """Raise DiagnosticStopped if SIGTERM was received. Call this method between two steps."""
        if self._stop:
            raise DiagnosticStopped

    def step(self, name: str) -> None:
        """Print the name of the step that begins now. If the process hangs, its last line names the step."""
        self.raise_if_stopped()
        print_json({"step": name})

    def report_check(self, name: str, passed: bool | None, numbers: dict[str, Any], detail: str = "") -> None:
        """Print the result of a check.

        ``passed`` is None if the check could not run or only measures a value.
        """
        if passed is False:
            self.failed.append(f"{name}: {detail}" if detail else name)
        print_json({"check": {"name": name, "passed": passed, "numbers": numbers, "detail": detail}})


def print_json(line: dict[str, Any]) -> None:
    """Print ``line`` as JSON in one line."""
    print(json.dumps(line), flush=True)
