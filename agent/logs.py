"""A run's output as the shim keeps it, read from any byte on."""

from __future__ import annotations

from pathlib import Path

CHUNK_BYTES = 1 << 16


def read(folder: Path, offset: int, *, ended: bool, limit: int = CHUNK_BYTES) -> tuple[int, str, int]:
    """(offset, text, next offset) of the next piece at or after ``offset``; no text when there is none yet.

    A byte that is no UTF-8 (and NUL, which the wire refuses) becomes one "?", so the text has as many bytes as the log. A
    character that is only half written waits, unless the run has ``ended``. Where the asked bytes were rotated away the
    piece begins later.
    """
    segments = sorted((int(path.name), path) for path in folder.glob("[0-9]*")) if folder.is_dir() else []
    for first, path in segments:
        size = path.stat().st_size
        if offset < first:
            offset = first
        if offset < first + size:
            with path.open("rb") as file:
                file.seek(offset - first)
                data = file.read(limit)
            last = path == segments[-1][1]
            if not (ended and offset - first + len(data) == size and last):
                data = data[: len(data) - _unfinished(data)] or (data if not last else b"")
            return offset, _text(data), offset + len(data)
    return offset, "", offset


def end(folder: Path) -> int:
    """The offset after the last byte; 0 where there is no log."""
    last = max(folder.glob("[0-9]*"), key=lambda path: int(path.name), default=None) if folder.is_dir() else None
    return int(last.name) + last.stat().st_size if last is not None else 0


def _unfinished(data: bytes) -> int:
    """How many bytes at the end begin a character that is not all there."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return back if needed > back else 0
    return 0


def _text(data: bytes) -> str:
    text = data.decode("utf-8", "surrogateescape").replace("\x00", "?")
    return "".join("?" if "\udc80" <= character <= "\udcff" else character for character in text)
