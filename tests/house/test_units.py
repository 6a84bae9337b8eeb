"""Test the systemd units: how much of the system each service can reach, and its schedule of backups."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HIGHEST_EXPOSURE = 4.0
# Workloads inherit the restrictions of the agent's unit, so it has few (docs/operations.md, "Units").
EXCEPTIONS = {"gpupool-agent.service"}


def units(root: Path) -> list[Path]:
    return sorted((root / "deploy" / "systemd").glob("*.service"))


def test_every_service_of_the_server_has_the_same_restrictions(root: Path) -> None:
    restricted = [unit for unit in units(root) if unit.name not in EXCEPTIONS]
    assert len(restricted) == 6
    settings = [
        {
            line
            for line in unit.read_text().splitlines()
            if line.startswith(("Protect", "Restrict", "SystemCall"))
        }
        for unit in restricted
    ]
    assert settings[0] and all(each == settings[0] for each in settings)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_exposure_of_every_service_is_low_except_of_documented_exceptions(root: Path) -> None:
    documented = (root / "docs" / "operations.md").read_text()
    for unit in units(root):
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
            capture_output=True,
            text=True,
        )
        found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
        assert found, done.stderr
        if unit.name in EXCEPTIONS:
            assert f"`{unit.name}`" in documented, f"docs/operations.md does not explain {unit.name}"
        else:
            assert float(found[1]) < HIGHEST_EXPOSURE, f"{unit.name}: {found[1]}"


def test_backups_run_every_night_and_are_verified(root: Path) -> None:
    folder = root / "deploy" / "systemd"
    assert "backup --verify" in (folder / "gpupool-backup.service").read_text()
    assert "OnCalendar=" in (folder / "gpupool-backup.timer").read_text()
    assert "gpupool-backup.timer" in (folder / "gpupool.target").read_text()
