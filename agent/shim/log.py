"""What a workload says, kept."""

from __future__ import annotations

import os

READ_BYTES = 1 << 16  # of a pipe, at once
LOG_SEGMENT_BYTES = 1 << 20
LOG_SEGMENTS = 8


class Log:
    """The workload's output in segments named by the offset of their first byte; the oldest go when there are too many."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.offset = 0
        self.file: int | None = None
        self.written = 0
        self.lost = 0
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def write(self, data: bytes) -> None:
        """Never raises: a full disk costs output, not the workload."""
        try:
            file = self.rotate() if self.file is None or self.written >= LOG_SEGMENT_BYTES else self.file
            while data:
                written = os.write(file, data)
                self.offset += written
                self.written += written
                data = data[written:]
        except OSError:
            self.lost += len(data)

    def rotate(self) -> int:
        if self.file is not None:
            os.close(self.file)
            self.file = None
        path = os.path.join(self.folder, f"{self.offset:015d}")
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.written = 0
        for name in sorted(os.listdir(self.folder))[:-LOG_SEGMENTS]:
            os.unlink(os.path.join(self.folder, name))
        return self.file
