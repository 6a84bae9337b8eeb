"""The last fence: a shim by itself, with a lease that is over or can't be read, and no agent."""

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

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[MakeRun]:
    """A run's folder with a shim at work on it; what it left is ended after the test."""
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
        who = read_json(folder / "shim.json") or {}
        if who and processes.is_alive(who["pid"], who["start_ticks"]):
            for pid in [
                who["pid"],
                *(each.pid for each in processes.descendants(processes.scan(), who["pid"])),
            ]:
                with contextlib.suppress(
                    ProcessLookupError
                ):  # it may be about to end, and its guard waits for it
                    os.kill(pid, signal.SIGKILL)


def begun(folder: Path, seconds: float = 15.0) -> None:
    """Wait until its workload has begun."""
    until = time.monotonic() + seconds
    while "started_at" not in (read_json(folder / "shim.json") or {}):
        assert time.monotonic() < until and read_json(folder / "exit.json") is None
        time.sleep(0.02)


def end_of(folder: Path, seconds: float = 15.0) -> dict[str, Any]:
    """How it ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (ended := read_json(folder / "exit.json")) is not None:
            return dict(ended)
        time.sleep(0.02)
    raise AssertionError(f"it did not end in {seconds} s: {(folder / 'shim.json').read_text()}")


@pytest.mark.parametrize("lease", [-1000.0, None], ids=["over", "missing"])
def test_nothing_begins_when_the_lease_is_over(make_run: MakeRun, lease: float | None) -> None:
    """The agent, or the whole machine, may have slept between its own look at the lease and the first step of the shim."""
    folder = make_run("sleep 20", None if lease is None else boottime() + lease)
    ended = end_of(folder)
    assert (ended["outcome"], ended["exit_code"]) == ("lease_lost", None)
    assert "started_at" not in (read_json(folder / "shim.json") or {})


def test_nothing_begins_that_was_stopped_in_between(make_run: MakeRun) -> None:
    stop = {"stop": {"outcome": "cancelled", "grace_seconds": 1.0, "whatever": False}}
    folder = make_run("sleep 20", boottime() + 60, stop)
    assert end_of(folder)["outcome"] == "cancelled"
    assert "started_at" not in (read_json(folder / "shim.json") or {})


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_a_lease_that_can_not_be_read_any_more_ends_when_it_would_have(make_run: MakeRun, how: str) -> None:
    until = boottime() + 5.0
    folder = make_run("sleep 60", until)
    begun(folder)
    if how == "removed":
        (folder / "lease").unlink()
    else:
        (folder / "lease").write_text("?")
    assert end_of(folder)["outcome"] == "lease_lost"
    assert boottime() >= until, "not before its lease"


def test_a_lease_that_can_be_read_again_counts_again(make_run: MakeRun, tmp_path: Path) -> None:
    until = boottime() + 5.0
    folder = make_run(f"until [ -e {tmp_path}/go ]; do sleep 0.1; done", until)
    begun(folder)
    (folder / "lease").unlink()
    time.sleep(1.5)  # it is looked at each second
    (folder / "lease").write_text(f"{boottime() + 60:020.3f}")
    while boottime() < until + 1.0:
        time.sleep(0.1)
    (tmp_path / "go").touch()
    assert end_of(folder)["outcome"] == "finished"
