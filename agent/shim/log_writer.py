"""What a workload says, kept."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # not from typing: it would double this process's memory
if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES = 1 << 16  # of a pipe, at once
MAX_READS = 64  # then there is something else to look at, however much is written
LOG_SEGMENT_BYTES = 1 << 20
MAX_LOG_SEGMENTS = 8


def drain_pipe(pipe: int, take: Callable[[bytes], None]) -> bool:
    """Hand what is in a pipe to ``take``, a piece at a time; whether nobody can write to it any more. Never waits, and comes to an
    end however fast somebody writes."""
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
    """The workload's output in segments named by the offset of their first byte; the oldest go when there are too many."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.offset = 0
        self.file: int | None = None
        self.written = 0
        self.lost = 0  # bytes that could not be written since the last that could
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def write(self, data: bytes) -> None:
        """Never raises: a full disk costs output, not the workload. What it cost is said as soon as there is room."""
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
