"""Store the beginning and the end of each run's log in segment files below GPUPOOL_STATE/logs.

The name of a segment file is its number. Segment ``n`` has the log's bytes from n * SEGMENT_BYTES on. The
first segment is always kept, because it shows how the run began. If there are more than MAX_SEGMENTS
segments, the oldest of the other segments are removed. The log of an ended run is kept until
``delete_old_logs`` deletes it.
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
    """Return the folder of a run's log, whether or not it exists."""
    text = str(run)
    return Path(settings.GPUPOOL_STATE) / "logs" / text[:2] / text


def append_log(run: uuid.UUID, offset: int, text: str) -> int:
    """Write ``text`` at byte ``offset`` of the run's log, and return the log's length in bytes.

    Bytes in segments that are no longer kept are skipped. Only ``offset`` decides the position of the text.
    So a chunk that is sent twice changes nothing, and a lost chunk leaves a gap until it is sent again.
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
    """Return the log's text from byte ``offset``, at most ``most`` bytes, and the offset for the next read.

    The text is empty at the log's end. A negative offset counts from the end. A character that is only partly
    within ``most`` bytes is left for the next read. If bytes at ``offset`` are not kept, the text begins with
    a line that says so.
    """
    segments = _segments(run)
    end = _end(run, segments)
    offset = min(end, offset) if offset >= 0 else max(0, end + offset)
    if offset == end:
        return "", end
    first = _first_kept(run, segments, offset)
    data, position = b"", first
    while len(data) < most and position < end:
        number, at = divmod(position, SEGMENT_BYTES)
        piece = _read(run, number, at, min(most - len(data), SEGMENT_BYTES - at))
        if not piece:
            break  # The next bytes are not kept. The next call continues after this gap.
        data, position = data + piece, position + len(piece)
    data = data[: len(data) - _partial_character_bytes(data)] or data
    return _gap_notice(first - offset) + data.replace(b"\0", b"").decode(errors="replace"), first + len(data)


def read_whole_log(run: uuid.UUID) -> bytes | None:
    """Return all kept bytes of a run's log, with a line for each gap. Return None if there is no log."""
    segments = _segments(run)
    return b"".join(_kept_pieces(run, segments)) if segments else None


def delete_old_logs(before: datetime, most: int) -> int:
    """Delete up to ``most`` logs of ended runs. Return the number of deleted logs.

    Only logs that were last written before ``before`` are deleted.
    """
    old: list[uuid.UUID] = []
    for folder in _all():
        with suppress(FileNotFoundError, ValueError):
            if len(old) < most and _last_written(folder) < before.timestamp():
                old.append(uuid.UUID(folder.name))
    running = set(Run.objects.filter(public_id__in=old, ended_at=None).values_list("public_id", flat=True))
    expired = [run for run in old if run not in running]
    for run in expired:
        shutil.rmtree(log_folder(run), ignore_errors=True)
    return len(expired)


def _all() -> Iterator[Path]:
    """Return the folders of all logs."""
    return (Path(settings.GPUPOOL_STATE) / "logs").glob("??/*-*")


def _last_written(folder: Path) -> float:
    return max([folder.stat().st_mtime, *(segment.stat().st_mtime for segment in folder.iterdir())])


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
    """Return the position of the first kept byte at or after ``offset``.

    ``offset`` must be before the log's end.
    """
    number, at = divmod(offset, SEGMENT_BYTES)
    if number in segments and (number == segments[-1] or at < (log_folder(run) / str(number)).stat().st_size):
        return offset
    return min(later for later in segments if later > number) * SEGMENT_BYTES


def _partial_character_bytes(data: bytes) -> int:
    """Return the number of bytes at the end that belong to an incomplete character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])
    return len(decoder.getstate()[0])


def _write(run: uuid.UUID, number: int, at: int, data: memoryview) -> None:
    folder = log_folder(run)
    is_new = not (folder / str(number)).exists()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT, 0o640)
    try:
        os.pwrite(descriptor, data, at)
    finally:
        os.close(descriptor)
    if is_new:
        for segment in _segments(run):
            if not _is_kept(run, segment):
                (folder / str(segment)).unlink(missing_ok=True)


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
