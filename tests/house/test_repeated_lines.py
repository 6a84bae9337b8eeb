"""Test that a repeated log line does not fill the disk: its rate, and the size of a log."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from config.repeated_lines import LINES_PER_SECOND, MAX_COUNTED_EVENTS, RateLimitedHandler
from tests.waiting import wait_until
from tools.site import supervisor


class LogAtTime:
    """A handler with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.output = io.StringIO()
        self.handler = RateLimitedHandler(lambda: self.now)
        self.handler.setStream(self.output)

    def write(self, message: object, times: int = 1, name: str = "a") -> None:
        for _ in range(times):
            self.handler.emit(logging.LogRecord(name, logging.WARNING, "", 0, message, None, None))

    @property
    def lines(self) -> list[str]:
        return self.output.getvalue().splitlines()


def test_the_same_line_is_written_ten_times_a_second_and_then_counted() -> None:
    log = LogAtTime()
    log.write("too many open files", times=5000)
    assert log.lines == ["too many open files"] * LINES_PER_SECOND
    log.now = 1.5
    log.write("too many open files")
    dropped = "4990 more lines of this event were dropped: too many open files"
    assert log.lines[LINES_PER_SECOND:] == [dropped, "too many open files"]


def test_another_line_or_logger_is_not_dropped() -> None:
    log = LogAtTime()
    log.write({"event": "agent refused", "host": "alpha"}, times=20)
    log.write({"event": "agent connected", "host": "alpha"})
    log.write({"event": "agent refused", "host": "alpha"}, name="b")
    assert len(log.lines) == LINES_PER_SECOND + 2


def test_lines_that_differ_only_in_values_count_as_the_same() -> None:
    log = LogAtTime()
    for number in range(50):
        log.write({"event": "connection refused", "address": f"192.0.2.{number}"})
    assert len(log.lines) == LINES_PER_SECOND


def test_dropped_lines_are_counted_even_if_the_line_does_not_come_again() -> None:
    log = LogAtTime()
    log.write("once", times=15)
    log.now = 2.0
    log.write("another")
    assert "5 more lines of this event were dropped: once" in log.lines
    log.write("last", times=12)
    log.handler.close()
    assert log.lines[-1] == "2 more lines of this event were dropped: last"


def test_the_counted_events_are_limited() -> None:
    log = LogAtTime()
    for number in range(3 * MAX_COUNTED_EVENTS):
        log.write(f"event {number}")
    assert len(log.handler._counts) <= MAX_COUNTED_EVENTS


def test_a_log_is_rotated_while_its_service_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MAX_LOG_BYTES", 1000)
    program = "import sys\nfor line in sys.stdin: print(line * 200, flush=True)"
    service = supervisor.Service("probe", [sys.executable, "-c", program], {}, tmp_path / "probe.log")
    with service.log.open("ab") as log:
        process = subprocess.Popen(service.command, stdin=subprocess.PIPE, stdout=log, text=True)
    assert process.stdin is not None
    try:
        process.stdin.write("first line\n")
        process.stdin.flush()
        wait_until(lambda: service.log.stat().st_size > 1000)
        service.limit_log()
        assert service.log.stat().st_size == 0
        assert (tmp_path / "probe.log.1").read_text().startswith("first line")
        process.stdin.write("second line\n")
        process.stdin.flush()
        wait_until(lambda: service.log.stat().st_size > 0)
        assert service.log.read_text().startswith("second line"), "it continues at the start of the file"
    finally:
        process.stdin.close()
        process.wait(60)
