"""Test a whole demo: killed services return, and Ctrl-C leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running_demo import Demo, free_pair
from tools.processes import process_start

pytestmark = [
    pytest.mark.long,
    pytest.mark.site,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("site"),
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    root = Path(__file__).resolve().parent.parent.parent
    found = Demo(root, tmp_path_factory.mktemp("site") / "demo", free_pair())
    try:
        found.wait_ready()
        yield found
    finally:
        if found.process.poll() is None:
            found.stop()


def test_the_demo_prints_its_address_and_accounts(demo: Demo) -> None:
    output = demo.output.read_text()
    assert f"gpupool is ready: {demo.url}" in output
    for role in ("researcher", "lead", "operator", "finance", "auditor"):
        assert re.search(rf"^  .*{role}", output, re.M), f"{role} is not in\n{output}"
    assert (demo.folder / "organisation.json").stat().st_mode & 0o077 == 0
    assert (demo.folder / "secrets.json").stat().st_mode & 0o077 == 0


def test_the_status_lists_every_service(demo: Demo) -> None:
    found = demo.status()
    assert found["url"] == demo.url
    assert {"postgres", "valkey", "web", "edge", "engine", "worker", "beat"} <= set(found["services"])
    assert len([name for name in found["services"] if name.startswith("agent-")]) == 4
    assert all(entry["state"] == "running" for entry in found["services"].values())


def test_a_second_demo_reports_the_running_one(demo: Demo) -> None:
    done = subprocess.run(
        [sys.executable, str(demo.root / "run"), "demo", "--state", str(demo.folder)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"already runs: {demo.url}" in done.stdout


def test_every_killed_service_is_back_in_seconds(demo: Demo) -> None:
    demo.wait_for(lambda: demo.answers("/readyz"), 30)
    for name in ("web", "edge", "engine", "worker", "beat", "valkey", "postgres"):
        before = demo.status()["services"][name]["pid"]
        os.kill(before, signal.SIGKILL)

        def is_back(name: str = name, before: int = before) -> bool:
            entry = demo.status()["services"][name]
            return entry["state"] == "running" and entry["pid"] not in (None, before)

        demo.wait_for(is_back, 60)
        assert demo.status()["services"][name]["restarts"] >= 1
    demo.wait_for(lambda: demo.answers("/readyz"), 30)


def test_ctrl_c_stops_all_processes_and_a_second_start_works(demo: Demo) -> None:
    pids = [entry["pid"] for entry in demo.status()["services"].values()]
    assert demo.stop() == 0
    assert not [pid for pid in pids if process_start(pid)]
    again = Demo(demo.root, demo.folder, demo.port)
    try:
        again.wait_ready(60)
        assert again.answers("/readyz")
    finally:
        again.stop()
