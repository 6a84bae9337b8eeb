"""Run focus-validator, the validator of the FinOps Foundation, on a CSV file of FOCUS 1.2.

It needs Python 3.12 or newer, so it gets a virtual environment of its own in a folder that is deleted
afterwards. It runs with ``--block-download``: it uses only the rules that its package contains.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOCUS_VALIDATOR_VERSION = "2.2.1"
FOCUS_VALIDATOR_DATASET_VERSION = "1.2"
MIN_PYTHON = (3, 12)
# Conditions of the specification that hold for gpupool. Rules with other conditions are skipped.
# CAPACITY_RESERVATION_SUPPORTED holds too, but is left out. With it, version 2.2.1 applies two contradictory
# rules to every row: CapacityReservationStatus must be null, and it must not be null.
APPLICABILITY = (
    "PUBLIC_PRICE_LIST_SUPPORTED",
    "NEGOTIATED_PRICING_SUPPORTED",
    "USAGE_MEASUREMENT_SUPPORTED",
    "UNIT_PRICING_SUPPORTED",
    "SUB_ACCOUNT_SUPPORTED",
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED",
    "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED",
)
# Newer versions need NumPy 2, which focus-validator excludes.
_PACKAGES = (f"focus-validator=={FOCUS_VALIDATOR_VERSION}", "pyarrow<21")
# By rule: its two alternatives. Only one of the alternatives must hold, but the validator reports each
# alternative that does not hold.
_ALTERNATIVES = {"InvoiceId-C-003-C": ("InvoiceId-C-004-C", "InvoiceId-C-005-C")}
_INSTALL_SECONDS, _RUN_SECONDS = 300, 900
_SUMMARY = re.compile(r"Total: (\d+) \| Pass: (\d+) \| Fail: (\d+) \| Skipped: (\d+)")
_FAILURE = re.compile(r"^- (\S+: violations=.*)$", re.MULTILINE)


@dataclass(frozen=True)
class FocusValidatorResult:
    """The result of focus-validator. If it could not run, ``version`` and ``failed`` are None.

    If one alternative of a rule holds, ``failed`` does not count the other alternative.
    """

    version: str | None
    failed: int | None
    passed: int = 0
    failures: tuple[str, ...] = ()
    reason: str = ""


def run_focus_validator(
    file: Path, criteria: tuple[str, ...] = APPLICABILITY, python: Path | None = None
) -> FocusValidatorResult:
    """Check a CSV file with focus-validator. ``python`` is the interpreter; None searches for one."""
    python = python or find_python()
    if python is None:
        return FocusValidatorResult(None, None, reason="no Python 3.12 or newer was found")
    with tempfile.TemporaryDirectory(prefix="focus-validator-") as folder:
        program = Path(folder, "environment/bin/focus-validator")
        try:
            _install(python, Path(folder, "environment"))
            command = [
                str(program),
                "--data-file",
                str(file.resolve()),
                "--block-download",
                "--validate-version",
            ]
            command += [FOCUS_VALIDATOR_DATASET_VERSION, "--applicability-criteria", ",".join(criteria)]
            # focus-validator opens a list of currencies by a path relative to site-packages.
            [packages] = Path(folder).glob("environment/lib/python3*/site-packages")
            output = _run([*command, "--show-violations"], _RUN_SECONDS, packages)
        except (OSError, subprocess.SubprocessError) as error:
            return FocusValidatorResult(None, None, reason=f"focus-validator did not run: {error}")
    return _result_of(output)


def find_python() -> Path | None:
    """Return the oldest interpreter of Python 3.12 or newer on this machine; None if there is none."""
    found: dict[tuple[int, int], Path] = {}
    for path in _candidates():
        version = _version_of(path)
        if version is not None and version >= MIN_PYTHON:
            found.setdefault(version, path)
    return found[min(found)] if found else None


def _candidates() -> Iterator[Path]:
    yield Path(sys.executable)
    for minor in range(MIN_PYTHON[1], MIN_PYTHON[1] + 6):
        if path := shutil.which(f"python3.{minor}"):
            yield Path(path)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    managed = Path.home() / ".local/share/uv/python"
    for folder in (pyenv, managed):
        if folder.is_dir():
            yield from sorted(folder.glob("*/bin/python3"))


def _version_of(python: Path) -> tuple[int, int] | None:
    try:
        output = _run([str(python), "-c", "import sys; print(*sys.version_info[:2])"], 30)
        major, minor = output.split()
        return int(major), int(minor)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _install(python: Path, environment: Path) -> None:
    _run([str(python), "-m", "venv", str(environment)], _INSTALL_SECONDS)
    pip = [str(environment / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *_PACKAGES], _INSTALL_SECONDS)


def _run(command: list[str], seconds: int, folder: Path | None = None) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds, cwd=folder)
    return done.stdout


def _result_of(output: str) -> FocusValidatorResult:
    summary = _SUMMARY.search(output)
    if summary is None:
        return FocusValidatorResult(None, None, reason="focus-validator printed no summary")
    failures = {failure.partition(":")[0]: failure for failure in _FAILURE.findall(output)}
    for whole, alternatives in _ALTERNATIVES.items():
        if whole not in failures:
            for rule in alternatives:
                failures.pop(rule, None)
    passed = int(summary.group(2))
    return FocusValidatorResult(FOCUS_VALIDATOR_VERSION, len(failures), passed, tuple(failures.values()))
