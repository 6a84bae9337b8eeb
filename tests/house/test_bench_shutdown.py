"""Test that `./run bench` ends all its processes: after a signal, an interrupt, or its normal end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.processes import descendants, process_start

# Like the benchmarks with a whole site, this benchmark starts a process in a new session, and this process
# starts another process.
BENCHMARK = """
import pathlib, subprocess, time

SERVICES = {services}


def main(arguments):
    pathlib.Path(arguments[0]).touch()
    subprocess.Popen(["sh", "-c", "setsid sleep 600 & wait"], start_new_session=True)
    time.sleep(1 if "--end" in arguments else 600)
    return {{}}
"""


class Bench:
    """A running `./run bench` with the benchmark above, in a copy of the checkout."""

    def __init__(self, checkout: Path, services: tuple[str, ...], *arguments: str) -> None:
        (checkout / "benchmarks" / "waiting.py").write_text(BENCHMARK.format(services=services))
        self.mark = checkout / "running"
        self.seen: dict[int, str | None] = {}
        command = [sys.executable, str(checkout / "run"), "bench", "waiting", str(self.mark), *arguments]
        env = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
        # If the tests run under nohup, this process ignores SIGHUP. Reset this, because child processes
        # inherit it.
        self.process = subprocess.Popen(
            command,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )

    def record_processes(self, seconds: float) -> None:
        """Wait until the benchmark and its processes run, and record all these processes."""
        deadline = time.monotonic() + seconds
        while not self.mark.exists() or self._count("sleep") < 1:
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        self.seen = {pid: process_start(pid) for pid in descendants(self.process.pid)}

    def _count(self, program: str) -> int:
        return sum(self._name(pid) == program for pid in descendants(self.process.pid))

    @staticmethod
    def _name(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            return ""

    def alive(self) -> list[str]:
        """Return the names of the recorded processes that still run."""
        return [self._name(pid) for pid, start in self.seen.items() if start and process_start(pid) == start]

    def kill(self) -> None:
        """Kill all recorded processes, even if the test failed."""
        self.process.kill()
        self.process.wait()
        for pid, start in self.seen.items():
            if start and process_start(pid) == start:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """Return a copy of the checkout with its own folder of benchmarks."""
    copy = tmp_path / "checkout"
    (copy / "benchmarks").mkdir(parents=True)
    shutil.copy(root / "run", copy / "run")
    shutil.copytree(root / "tools", copy / "tools")
    for name in ("__init__.py", "__main__.py"):
        if (root / "benchmarks" / name).exists():
            shutil.copy(root / "benchmarks" / name, copy / "benchmarks" / name)
    for path in root.iterdir():
        if not (copy / path.name).exists() and path.name != ".git":
            (copy / path.name).symlink_to(path)
    return copy


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    started: list[Bench] = []
    yield started
    for bench in started:
        bench.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)])
def test_a_signal_to_a_benchmark_ends_all_processes(
    checkout: Path, benches: list[Bench], number: int
) -> None:
    bench = Bench(checkout, ("valkey",))
    benches.append(bench)
    bench.record_processes(60)
    assert {"sh", "sleep", "valkey-server"} <= {bench._name(pid) for pid in bench.seen}
    bench.process.send_signal(number)
    assert bench.process.wait(90) == 128 + number
    assert bench.alive() == []


def test_an_interrupt_of_the_process_group_ends_all_processes(checkout: Path, benches: list[Bench]) -> None:
    bench = Bench(checkout, ("valkey",))
    benches.append(bench)
    bench.record_processes(60)
    for _ in range(2):  # two interrupts, as from an impatient user
        os.killpg(bench.process.pid, signal.SIGINT)
        time.sleep(0.05)
    assert bench.process.wait(90) == 128 + signal.SIGINT
    assert bench.alive() == []


def test_the_end_of_a_benchmark_ends_its_processes(checkout: Path, benches: list[Bench]) -> None:
    bench = Bench(checkout, (), "--end")
    benches.append(bench)
    bench.record_processes(60)
    assert bench.process.wait(90) == 0
    assert bench.alive() == []


@pytest.mark.site
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_benchmark_ends_its_demo(checkout: Path, benches: list[Bench], number: int) -> None:
    bench = Bench(checkout, ("demo",))
    benches.append(bench)
    bench.record_processes(200)
    assert len(bench.seen) > 10
    os.killpg(bench.process.pid, number)
    assert bench.process.wait(120) == 128 + number
    assert bench.alive() == []
