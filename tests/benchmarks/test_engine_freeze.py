"""Test the choice of the engine that `freeze_engine` stops."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks.fault_injection.workload_faults import (
    LeadingEngine,
    freeze,
    leading_engine,
    process_state,
    resume,
)

# A parent with one child, like an engine with one worker. The child stays a zombie after its end, because the
# parent does not wait for it.
ENGINE_SCRIPT = """
import os, signal
worker = os.fork()
if worker:
    print(worker, flush=True)
signal.pause()
"""


@pytest.fixture
def engine() -> Iterator[tuple[int, int]]:
    """Run a process with one child; yield both pids."""
    process = subprocess.Popen([sys.executable, "-c", ENGINE_SCRIPT], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    try:
        yield process.pid, worker
    finally:
        for pid in (worker, process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def _ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_leader_that_has_ended_is_not_chosen(engine: tuple[int, int]) -> None:
    parent, worker = engine
    ended = _ended_pid()
    assert leading_engine(f"host:{ended}:aa", [parent, ended]) is None
    assert leading_engine("", [parent]) is None
    os.kill(worker, signal.SIGKILL)
    while process_state(worker) not in "ZX":
        os.sched_yield()
    assert leading_engine(f"host:{worker}:aa", [parent]) is None


def test_a_living_leader_is_chosen_with_all_its_processes(engine: tuple[int, int]) -> None:
    parent, worker = engine
    holder = f"host:{worker}:aa"
    assert leading_engine(holder, [_ended_pid(), parent]) == LeadingEngine(holder, (parent, worker))


def test_a_process_that_has_the_pid_of_an_ended_leader_is_not_chosen(engine: tuple[int, int]) -> None:
    _, worker = engine
    assert leading_engine(f"host:{worker}:aa", [_ended_pid()]) is None


def test_freezing_stops_every_process_or_none(engine: tuple[int, int]) -> None:
    parent, worker = engine
    assert freeze(LeadingEngine("host:1:aa", (parent, worker)))
    assert [process_state(pid) for pid in engine] == ["T", "T"]
    resume(LeadingEngine("host:1:aa", (parent, worker)))
    assert "T" not in [process_state(pid) for pid in engine]
    assert not freeze(LeadingEngine("host:1:aa", (parent, worker, _ended_pid())))
    assert "T" not in [process_state(pid) for pid in engine]
