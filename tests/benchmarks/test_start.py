"""Test that every benchmark starts in a new process."""

from __future__ import annotations

import subprocess
import sys

from tools.paths import ROOT

IMPORT_ALL = """
import importlib
from benchmarks.__main__ import names

print(len([importlib.import_module(f"benchmarks.{name}").main for name in names()]))
"""


def test_every_benchmark_can_be_imported_before_django_is_set_up() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 17
