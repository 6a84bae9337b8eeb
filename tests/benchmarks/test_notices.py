"""Test `./run bench notices`: an outage of the mail server and a killed worker lose and double nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.site
@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.xdist_group("site")
def test_no_notice_is_lost_while_the_mail_server_is_away_and_a_worker_is_killed(root: Path) -> None:
    times = ("--seconds", "18", "--outage", "5")
    completed = subprocess.run(
        [sys.executable, str(root / "run"), "bench", "notices", *times, "--json"],
        capture_output=True,
        text=True,
        timeout=380,
        env={name: value for name, value in os.environ.items() if not name.endswith("_URL")},
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    figures = json.loads(completed.stdout.splitlines()[-1])
    assert set(figures) == {"sent", "lost", "doubled", "delay_p95_s", "outage_s"}
    assert (figures["lost"], figures["doubled"], figures["outage_s"]) == (0, 0, 5)
    assert figures["sent"] == 90 and figures["delay_p95_s"] > 0
