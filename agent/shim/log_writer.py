"""Writes the output of a workload to its log."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # not imported from typing, because the import would double this process's memory
if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES = 1 << 16  # largest size of one read of a pipe
MAX_READS = 64  # largest number of reads per call, so that a fast writer does not block the shim
LOG_SEGMENT_BYTES = 1 << 20
MAX_LOG_SEGMENTS = 8


def drain_pipe(pipe: int, take: Callable[[bytes], None]) -> bool:
    """Pass the content of a pipe to ``take`` in pieces. Return True if the pipe has no writer any more.

    The call never waits. It returns after MAX_READS, even if a process writes continuously.
    """
    for _ in range(MAX_READS):
        try:
            data = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            return True
        take(data)
    return False


class LogWriter:
    """The log of one workload, in segments named by the offset of their first byte.

    Only the newest MAX_LOG_SEGMENTS are kept.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.offset = 0
        self.file: int | None = None
        self.written = 0
        self.lost = 0  # number of bytes that were lost since the last successful write
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def write(self, data: bytes) -> None:
        """Write output to the log. Never raises an error.

        On a full disk the output is lost. The next successful write then states how many bytes are missing.
        """
        rest = (
            b"\n[%d bytes are missing here: they could not be written]\n" % self.lost if self.lost else b""
        ) + data
        try:
            file = self.rotate() if self.file is None or self.written >= LOG_SEGMENT_BYTES else self.file
            while rest:
                written = os.write(file, rest)
                self.offset += written
                self.written += written
                rest = rest[written:]
            self.lost = 0
        except OSError:
            self.lost += min(len(rest), len(data))

    def rotate(self) -> int:
        if self.file is not None:
            os.close(self.file)
            self.file = None
        path = os.path.join(self.folder, f"{self.offset:015d}")
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.written = 0
        for name in sorted(os.listdir(self.folder))[:-MAX_LOG_SEGMENTS]:
            os.unlink(os.path.join(self.folder, name))
        return self.file
