"""What runs wrote, kept as one file per run below GPUPOOL_STATE/logs, bounded. It stays after the end."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from django.conf import settings

MOST_BYTES = 8 * 1024 * 1024
CUT = b"\n[gpupool: the log is longer than is kept here]\n"


def path(run: uuid.UUID) -> Path:
    """Where a run's log lies, whether or not it has one."""
    text = str(run)
    return Path(settings.GPUPOOL_STATE) / "logs" / text[:2] / f"{text}.log"


def append(run: uuid.UUID, offset: int, text: str) -> int:
    """Write ``text`` at byte ``offset`` of the run's log, as far as it is kept. Answers how long the log is now.

    The place is the offset's alone: a chunk sent twice changes nothing, and one that was lost leaves a gap until it is sent again.
    """
    if offset < 0:
        return 0
    file = path(run)
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o640)
    try:
        data = text.encode()
        if offset + len(data) > MOST_BYTES:
            data = (data + CUT)[: max(0, MOST_BYTES - offset)]
        if data:
            os.pwrite(descriptor, data, offset)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def read(run: uuid.UUID, offset: int = 0, most: int = 256 * 1024) -> tuple[str, int]:
    """Text from byte ``offset`` and the offset after it; a negative offset counts from the end. Empty when there is no log."""
    try:
        with path(run).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = min(size, offset) if offset >= 0 else max(0, size + offset)
            file.seek(start)
            data = file.read(most)
    except FileNotFoundError:
        return "", 0
    return data.replace(b"\0", b"").decode(errors="replace"), start + len(data)
