"""Limit how often the same log line is written.

A fault that repeats thousands of times a second would otherwise fill the disk with its log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

LINES_PER_SECOND = 10  # of the same event of the same logger
MAX_COUNTED_EVENTS = 1000


@dataclass(slots=True)
class EventCount:
    """The lines of one event in the current second."""

    began_at: float
    first: logging.LogRecord
    lines: int = 0
    dropped: int = 0


class RateLimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler to stderr that writes at most LINES_PER_SECOND lines of the same event in a second.

    Lines have the same event if logger, level and text agree. The values in a line do not count. A further
    line then gives the number of lines that were dropped.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._counts: dict[tuple[str, int, str], EventCount] = {}
        self._checked_at = clock()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record unless its event was written too often in this second."""
        now = self._clock()
        if now - self._checked_at >= 1:
            self._checked_at = now
            self._end_seconds(now)
        key = (record.name, record.levelno, _event(record))
        count = self._counts.get(key)
        if count is None:
            if len(self._counts) >= MAX_COUNTED_EVENTS:
                self._end_seconds(float("inf"))
            count = self._counts[key] = EventCount(now, record)
        elif now - count.began_at >= 1:
            self._write_dropped(count)
            count.began_at, count.lines, count.dropped = now, 0, 0
        if count.lines >= LINES_PER_SECOND:
            count.dropped += 1
            return
        count.lines += 1
        super().emit(record)

    def close(self) -> None:
        """Write the numbers of dropped lines before the process ends."""
        self._end_seconds(float("inf"))
        super().close()

    def _end_seconds(self, now: float) -> None:
        for key, count in list(self._counts.items()):
            if now - count.began_at >= 1:
                self._write_dropped(count)
                del self._counts[key]

    def _write_dropped(self, count: EventCount) -> None:
        if not count.dropped:
            return
        first = count.first
        text = f"{count.dropped} more lines of this event were dropped: {_event(first)}"
        super().emit(
            logging.LogRecord(first.name, first.levelno, first.pathname, first.lineno, text, None, None)
        )


def _event(record: logging.LogRecord) -> str:
    """Return the text of a record without its values. Records of structlog are dictionaries."""
    message = record.msg
    return str(message.get("event", ""))[:300] if isinstance(message, dict) else str(message)[:300]
