"""Run the tests against real identity servers, and count how many passed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.harness.installation import ROOT
from tools.service_environment import path_with_environment

SUITES = {"oidc": ("tests/oidc",), "ldap": ("tests/ldap",)}


def count_tests(suite: str, environment: dict[str, str]) -> dict[str, int]:
    """Run the tests of an identity server. Return how many passed, and how many failed.

    A test that is skipped is in neither number. Without a folder of tests, both are 0.
    """
    folders = [folder for folder in SUITES[suite] if (ROOT / folder).is_dir()]
    if not folders:
        print(f"  {suite}: none of the folders {', '.join(SUITES[suite])} exists", flush=True)
        return {"passed": 0, "failed": 0}
    with tempfile.TemporaryDirectory(prefix="gpupool-trust-") as place:
        report = Path(place) / "report.xml"
        command = [sys.executable, str(ROOT / "run"), "test", *folders, "-q", "-m", "not browser"]
        kept = {name: value for name, value in environment.items() if not name.endswith("_URL")}
        done = subprocess.run(
            [*command, f"--junitxml={report}"],
            cwd=ROOT,
            env={**kept, "PATH": path_with_environment(kept.get("PATH"))},
            capture_output=True,
            text=True,
        )
        if not report.exists():
            print(f"  {suite}: {(done.stdout + done.stderr)[-2000:]}", flush=True)
            return {"passed": 0, "failed": 1}
        counts = count_report(report.read_text())
    if counts["failed"]:
        print(f"  {suite}: {done.stdout[-3000:]}", flush=True)
    return counts


def count_report(text: str) -> dict[str, int]:
    """Return how many tests of a JUnit report passed, and how many failed or could not run."""
    suites = list(ElementTree.fromstring(text).iter("testsuite"))
    total, failed, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    return {"passed": total - failed - errors - skipped, "failed": failed + errors}
