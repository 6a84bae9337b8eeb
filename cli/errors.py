"""What can go wrong, with the exit code that says so to scripts."""

from __future__ import annotations

EXIT_REFUSED = 1  # the portal said no
EXIT_USAGE = 2  # the command line itself is wrong (click's own code)
EXIT_NOT_SIGNED_IN = 3
EXIT_NOT_FOUND = 4
EXIT_UNREACHABLE = 5  # no answer, or one that only a broken server gives


class CliError(Exception):
    """One line for people, and an exit code. ``lines`` are said below it."""

    def __init__(self, message: str, code: int = EXIT_REFUSED, lines: list[str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.lines = list(lines or [])
