"""What runs wrote, kept in segments below GPUPOOL_STATE/logs: the beginning and the end of each log, however long it was.

A segment is named by its number, and holds the log's bytes from number * SEGMENT_BYTES on. The first stays, since it says how a run
began; of the others the oldest go when there are too many. A log stays after its run's end, until ``delete_old_logs``.
"""

from __future__ import annotations

import codecs
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from django.conf import settings

from scheduler.models import Run

SEGMENT_BYTES = 1024 * 1024
MAX_SEGMENTS = 8
MAX_LOG_BYTES = MAX_SEGMENTS * SEGMENT_BYTES


def log_folder(run: uuid.UUID) -> Path:
    """Where a run's log lies, whether or not it has one."""
    text = str(run)
    return Path(settings.GPUPOOL_STATE) / "logs" / text[:2] / text


def append_log(run: uuid.UUID, offset: int, text: str) -> int:
    """Write ``text`` at byte ``offset`` of the run's log, as far as it is kept. Answers how long the log is now.

    The place is the offset's alone: a chunk sent twice changes nothing, and one that was lost leaves a gap until it is sent again.
    """
    if offset < 0:
        return 0
    data = memoryview(text.encode())
    while data:
        number, at = divmod(offset, SEGMENT_BYTES)
        piece = data[: SEGMENT_BYTES - at]
        if _is_kept(run, number):
            _write(run, number, at, piece)
        data, offset = data[len(piece) :], offset + len(piece)
    return _end(run, _segments(run))


def read_log(run: uuid.UUID, offset: int = 0, most: int = 256 * 1024) -> tuple[str, int]:
    """Text from byte ``offset`` and the offset after it; a negative offset counts from the end. Empty when there is none yet.

    A character that is only half within ``most`` is left for the next piece. Where bytes are not kept any more a line says so.
    """
    segments = _segments(run)
    end = _end(run, segments)
    offset = min(end, offset) if offset >= 0 else max(0, end + offset)
    if offset == end:
        return "", end
    first = _first_kept(run, segments, offset)
    data, place = b"", first
    while len(data) < most and place < end:
        number, at = divmod(place, SEGMENT_BYTES)
        piece = _read(run, number, at, min(most - len(data), SEGMENT_BYTES - at))
        if not piece:
            break  # something is not kept: the next call begins after that
        data, place = data + piece, place + len(piece)
    data = data[: len(data) - _partial_character_bytes(data)] or data
    return _gap_notice(first - offset) + data.replace(b"\0", b"").decode(errors="replace"), first + len(data)


def read_whole_log(run: uuid.UUID) -> bytes | None:
    """All that is kept of a run's log, with a line where something is not; None when it has written nothing."""
    segments = _segments(run)
    return b"".join(_kept_pieces(run, segments)) if segments else None


def delete_old_logs(before: datetime, most: int) -> int:
    """Remove up to ``most`` logs that nobody has written to since ``before``, of runs that have ended; how many."""
    old: list[uuid.UUID] = []
    for place in _all():
        with suppress(FileNotFoundError, ValueError):
            if len(old) < most and _last_written(place) < before.timestamp():
                old.append(uuid.UUID(place.name))
    open_ones = set(Run.objects.filter(public_id__in=old, ended_at=None).values_list("public_id", flat=True))
    gone = [run for run in old if run not in open_ones]
    for run in gone:
        shutil.rmtree(log_folder(run), ignore_errors=True)
    return len(gone)


def _all() -> Iterator[Path]:
    """The folder of every log."""
    return (Path(settings.GPUPOOL_STATE) / "logs").glob("??/*-*")


def _last_written(place: Path) -> float:
    return max([place.stat().st_mtime, *(segment.stat().st_mtime for segment in place.iterdir())])


def _segments(run: uuid.UUID) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(log_folder(run)) if name.isdigit())
    except FileNotFoundError:
        return []


def _is_kept(run: uuid.UUID, number: int) -> bool:
    newest = max(_segments(run), default=0)
    return number == 0 or number > newest - (MAX_SEGMENTS - 1)


def _end(run: uuid.UUID, segments: list[int]) -> int:
    if not segments:
        return 0
    with suppress(FileNotFoundError):
        return segments[-1] * SEGMENT_BYTES + (log_folder(run) / str(segments[-1])).stat().st_size
    return 0


def _first_kept(run: uuid.UUID, segments: list[int], offset: int) -> int:
    """The first byte from ``offset`` on that there is; ``offset`` lies before the end."""
    number, at = divmod(offset, SEGMENT_BYTES)
    if number in segments and (number == segments[-1] or at < (log_folder(run) / str(number)).stat().st_size):
        return offset
    return min(each for each in segments if each > number) * SEGMENT_BYTES


def _partial_character_bytes(data: bytes) -> int:
    """How many bytes at the end begin a character that is not all there."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])
    return len(decoder.getstate()[0])


def _write(run: uuid.UUID, number: int, at: int, data: memoryview) -> None:
    place = log_folder(run)
    is_new = not (place / str(number)).exists()
    place.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place / str(number), os.O_WRONLY | os.O_CREAT, 0o640)
    try:
        os.pwrite(descriptor, data, at)
    finally:
        os.close(descriptor)
    if is_new:
        for each in _segments(run):
            if not _is_kept(run, each):
                (place / str(each)).unlink(missing_ok=True)


def _read(run: uuid.UUID, number: int, at: int, most: int) -> bytes:
    try:
        with (log_folder(run) / str(number)).open("rb") as file:
            file.seek(at)
            return file.read(most)
    except FileNotFoundError:
        return b""


def _kept_pieces(run: uuid.UUID, segments: list[int]) -> Iterator[bytes]:
    expected = 0
    for number in segments:
        if number > expected:
            yield _gap_notice((number - expected) * SEGMENT_BYTES).encode()
        yield _read(run, number, 0, SEGMENT_BYTES).replace(b"\0", b"")
        expected = number + 1


def _gap_notice(size: int) -> str:
    return f"\n[gpupool: {size:,} bytes are not kept here]\n" if size else ""
