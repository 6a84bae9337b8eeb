"""Test the short form of `./run bench faults`, which kills real processes under load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.site
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("site")
def test_engine_edge_agent_shim_and_valkey_may_be_killed_under_load(root: Path) -> None:
    completed = subprocess.run(
        [sys.executable, str(root / "run"), "bench", "faults", "--short", "--json"],
        capture_output=True,
        text=True,
        timeout=580,
        env={name: value for name, value in os.environ.items() if not name.endswith("_URL")},
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    figures = json.loads(completed.stdout.splitlines()[-1])
    assert set(figures["faults"]) == {"kill_engine", "kill_edge", "kill_agent", "kill_shim", "kill_valkey"}
    assert figures["survived"] == figures["rounds"] == 5, completed.stdout[-3000:]


@pytest.mark.site
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("site")
def test_work_outlives_a_hang_of_the_database_and_of_the_edge(root: Path) -> None:
    options = ["--only", "hang_database,hang_edge", "--rounds", "1", "--untimed", "--json"]
    completed = subprocess.run(
        [sys.executable, str(root / "run"), "bench", "faults", *options],
        capture_output=True,
        text=True,
        timeout=580,
        env={name: value for name, value in os.environ.items() if not name.endswith("_URL")},
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    figures = json.loads(completed.stdout.splitlines()[-1])
    assert figures["survived"] == figures["rounds"] == 2, completed.stdout[-3000:]
