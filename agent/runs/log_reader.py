"""A run's output as the shim keeps it, read from any byte on."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MAX_CHUNK_BYTES = 1 << 16


def read_chunk(
    folder: Path, offset: int, *, ended: bool, limit: int = MAX_CHUNK_BYTES
) -> tuple[int, str, int]:
    """(offset, text, next offset) of the next piece at or after ``offset``; no text when there is none yet.

    A byte that is no UTF-8 (and NUL, which the wire refuses) becomes one "?", so the text has as many bytes as the log. A
    character that is only half written waits, unless the run has ``ended``. Where the asked bytes were rotated away the
    piece begins later.
    """
    segments = sorted((int(path.name), path) for path in folder.glob("[0-9]*")) if folder.is_dir() else []
    for first, path in segments:
        begin = max(offset, first)
        try:
            data, is_rest = _read_segment(path, begin - first, limit)
        except FileNotFoundError:
            continue  # a loud workload: it was rotated away since the list was made
        if data:
            last = path == segments[-1][1]
            if not (ended and is_rest and last):
                data = data[: len(data) - _incomplete_bytes(data)] or (data if not last else b"")
            return begin, _decode(data), begin + len(data)
    return offset, "", offset


def _read_segment(path: Path, at: int, limit: int) -> tuple[bytes, bool]:
    """Bytes of a segment from ``at`` on, and whether that is the rest of it. Raises FileNotFoundError."""
    with path.open("rb") as file:
        file.seek(at)
        data = file.read(limit)
        return data, at + len(data) == os.fstat(file.fileno()).st_size


def end_offset(folder: Path) -> int:
    """The offset after the last byte; 0 where there is no log."""
    segments = (
        sorted(((int(path.name), path) for path in folder.glob("[0-9]*")), reverse=True)
        if folder.is_dir()
        else []
    )
    for first, path in segments:
        with contextlib.suppress(FileNotFoundError):
            return first + path.stat().st_size
    return 0


def _incomplete_bytes(data: bytes) -> int:
    """How many bytes at the end begin a character that is not all there."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return back if needed > back else 0
    return 0


def _decode(data: bytes) -> str:
    text = data.decode("utf-8", "surrogateescape").replace("\x00", "?")
    return "".join("?" if "\udc80" <= character <= "\udcff" else character for character in text)
