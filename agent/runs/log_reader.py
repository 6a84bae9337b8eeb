"""Reads the log of a run, which the shim writes in segments, from any byte offset."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MAX_CHUNK_BYTES = 1 << 16


def read_chunk(
    folder: Path, offset: int, *, ended: bool, limit: int = MAX_CHUNK_BYTES
) -> tuple[int, str, int]:
    """Return the offset of the next chunk at or after ``offset``, its text, and the offset after it.

    The text is '' if there is no further chunk yet. If the requested bytes were already removed, the chunk
    begins later than ``offset``. An incomplete character at the end is left for the next chunk, unless the
    run has ``ended``.

    Each byte that is not UTF-8 becomes "?". NUL becomes "?" too, because the protocol rejects NUL. The length
    in bytes does not change.
    """
    segments = sorted((int(path.name), path) for path in folder.glob("[0-9]*")) if folder.is_dir() else []
    for first, path in segments:
        begin = max(offset, first)
        try:
            data, is_rest = _read_segment(path, begin - first, limit)
        except FileNotFoundError:
            continue  # the segment was removed after the folder was listed
        if data:
            last = path == segments[-1][1]
            if not (ended and is_rest and last):
                data = data[: len(data) - _incomplete_bytes(data)] or (data if not last else b"")
            return begin, _decode(data), begin + len(data)
    return offset, "", offset


def _read_segment(path: Path, at: int, limit: int) -> tuple[bytes, bool]:
    """Return at most ``limit`` bytes of a segment from ``at``, and True if they reach the segment's end.

    Raises FileNotFoundError.
    """
    with path.open("rb") as file:
        file.seek(at)
        data = file.read(limit)
        return data, at + len(data) == os.fstat(file.fileno()).st_size


def end_offset(folder: Path) -> int:
    """Return the offset after the last byte of the log in ``folder``; 0 if there is no log."""
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
    """Return the number of bytes at the end of ``data`` that are an incomplete UTF-8 character."""
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
