"""Prints the progress of one diagnostic, one JSON object a line."""

from __future__ import annotations

import json
from typing import Any


class DiagnosticStopped(Exception):
    """Work wants the GPU."""


class CheckProgress:
    """The course of one diagnostic: what was found so far, and whether it shall stop."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.unknown = ""  # why something that matters could not be looked at
        self._stop = False

    def stop(self, *_: object) -> None:
        """SIGTERM came."""
        self._stop = True

    def raise_if_stopped(self) -> None:
        """Between two steps. Raises DiagnosticStopped."""
        if self._stop:
            raise DiagnosticStopped

    def step(self, name: str) -> None:
        """What comes now: the last line, should this process not come back."""
        self.raise_if_stopped()
        print_json({"step": name})

    def found(self, name: str, passed: bool | None, numbers: dict[str, Any], detail: str = "") -> None:
        """The result of a check."""
        if passed is False:
            self.failed.append(f"{name}: {detail}" if detail else name)
        print_json({"check": {"name": name, "passed": passed, "numbers": numbers, "detail": detail}})


def print_json(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)
