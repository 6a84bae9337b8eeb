"""Test the short form of `./run bench fleet`: a complete site with lightweight and real agents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.site
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("site")
def test_three_lightweight_hosts_report_and_run_work_without_an_error(root: Path) -> None:
    completed = subprocess.run(
        [sys.executable, str(root / "run"), "bench", "fleet", "--hosts", "3", "--seconds", "5", "--json"],
        capture_output=True,
        text=True,
        timeout=280,
        env={name: value for name, value in os.environ.items() if not name.endswith("_URL")},
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    figures = json.loads(completed.stdout.splitlines()[-1])
    assert figures["errors"] == 0, completed.stderr[-3000:]
    assert figures["hosts"] == 3
    assert figures["starts"] >= 1
    assert figures["sync_p95"] > 0 and figures["start_p95"] > 0
    assert 10 < figures["agent_mb"] < 60
    assert 5 < figures["shim_mb"] < 15
