"""Define the exit codes and the exception that carries an exit code.

Most exit codes are chosen in client.py and main.py.
"""

from __future__ import annotations

EXIT_REFUSED = 1  # the portal refused the request, or a local file can't be used
EXIT_USAGE = 2  # the command line itself is wrong (click's own code)
EXIT_NOT_SIGNED_IN = 3
EXIT_NOT_FOUND = 4
EXIT_UNREACHABLE = 5  # no answer, an invalid answer, or an older portal
EXIT_INTERRUPTED = 130  # 128 + SIGINT, the exit code that shells use for an interrupt


class CliError(Exception):
    """An error with a one-line message and an exit code. ``lines`` are printed below the message."""

    def __init__(self, message: str, code: int = EXIT_REFUSED, lines: list[str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.lines = list(lines or [])
