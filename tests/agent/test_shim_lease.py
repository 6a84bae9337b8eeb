"""Test a shim without an agent whose lease has expired or cannot be read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.host import processes
from agent.host.clock import boottime
from agent.host.durable_files import read_json
from agent.host.state import StateFolder
from tests.waiting import wait_until

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[MakeRun]:
    """Return a function that creates a run's folder and starts a shim for it.

    The fixture kills remaining processes after the test.
    """
    made: list[Path] = []
    state = StateFolder(tmp_path / "state")
    state.install_tools()

    def make(command: str, lease: float | None, order: dict[str, Any] | None = None) -> Path:
        folder = tmp_path / f"run-{len(made)}"
        for name in ("in", "out", "tmp", "log", "checkpoint"):
            (folder / name).mkdir(parents=True)
        if lease is not None:
            (folder / "lease").write_text(f"{lease:020.3f}")
        (folder / "order.json").write_text(json.dumps(order or {}))
        spec = {
            "own_fds": [],
            "launcher": "plain",
            "argv": ["/bin/sh", "-c", command],
            "cwd": "/",
            "env": {"PATH": os.environ["PATH"], "GPUPOOL_MARK": "x"},
            "cgroup_procs": [],
            "checkpoint_dir": str(folder / "checkpoint"),
            "grace_seconds": 0.5,
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        made.append(folder)
        subprocess.run([sys.executable, "-I", "-S", str(state.tools / "shim"), str(folder)], check=True)
        return folder

    yield make
    for folder in made:
        shim = read_json(folder / "shim.json") or {}
        if shim and processes.is_alive(shim["pid"], shim["start_ticks"]):
            for pid in [
                shim["pid"],
                *(each.pid for each in processes.descendants(processes.scan(), shim["pid"])),
            ]:
                with contextlib.suppress(ProcessLookupError):  # the process may have ended already
                    os.kill(pid, signal.SIGKILL)


def wait_for_start(folder: Path, seconds: float = 15.0) -> None:
    """Wait until the workload has started."""
    until = time.monotonic() + seconds
    while "started_at" not in (read_json(folder / "shim.json") or {}):
        assert time.monotonic() < until and read_json(folder / "exit.json") is None
        time.sleep(0.02)


def wait_for_checks(folder: Path, count: int) -> None:
    """Wait until the shim has checked the lease `count` more times.

    The shim sleeps between two checks, so count its voluntary context switches.
    """

    def sleeps() -> int:
        status = Path(f"/proc/{read_json(folder / 'shim.json')['pid']}/status").read_text()
        return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])

    first = sleeps()
    wait_until(lambda: sleeps() > first + count)


def wait_for_end(folder: Path, seconds: float = 15.0) -> dict[str, Any]:
    """Wait for the end of the run and return its exit record."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (ended := read_json(folder / "exit.json")) is not None:
            return dict(ended)
        time.sleep(0.02)
    raise AssertionError(f"the run did not end in {seconds} s: {(folder / 'shim.json').read_text()}")


@pytest.mark.parametrize("lease", [-1000.0, None], ids=["over", "missing"])
def test_a_workload_does_not_start_without_a_valid_lease(make_run: MakeRun, lease: float | None) -> None:
    """Start a shim with an invalid lease, as after a suspend just before the shim's start."""
    folder = make_run("sleep 20", None if lease is None else boottime() + lease)
    ended = wait_for_end(folder)
    assert (ended["outcome"], ended["exit_code"]) == ("lease_lost", None)
    assert "started_at" not in (read_json(folder / "shim.json") or {})


def test_a_workload_stopped_before_its_start_does_not_start(make_run: MakeRun) -> None:
    stop = {"stop": {"outcome": "cancelled", "grace_seconds": 1.0, "whatever": False}}
    folder = make_run("sleep 20", boottime() + 60, stop)
    assert wait_for_end(folder)["outcome"] == "cancelled"
    assert "started_at" not in (read_json(folder / "shim.json") or {})


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_an_unreadable_lease_expires_at_its_last_known_time(make_run: MakeRun, how: str) -> None:
    until = boottime() + 5.0
    folder = make_run("sleep 60", until)
    wait_for_start(folder)
    if how == "removed":
        (folder / "lease").unlink()
    else:
        (folder / "lease").write_text("?")
    assert wait_for_end(folder)["outcome"] == "lease_lost"
    assert boottime() >= until, "the run must not end before its lease expires"


def test_a_restored_lease_is_used_again(make_run: MakeRun, tmp_path: Path) -> None:
    until = boottime() + 5.0
    folder = make_run(f"until [ -e {tmp_path}/go ]; do sleep 0.1; done", until)
    wait_for_start(folder)
    (folder / "lease").unlink()
    wait_for_checks(folder, 2)
    (folder / "lease").write_text(f"{boottime() + 60:020.3f}")
    while boottime() < until + 1.0:
        time.sleep(0.1)
    (tmp_path / "go").touch()
    assert wait_for_end(folder)["outcome"] == "finished"
