"""Name the folders of the checkout that `./run` reads and writes."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".gpupool"
VENV = STATE / "venv"
PYTHON = VENV / "bin" / "python"
EXAMPLES_VENV = STATE / "torch"
PROMETHEUS = STATE / "prometheus"
CANAILLE_VENV = STATE / "canaille"  # the OpenID Connect server of the tests


def find_program(name: str) -> str | None:
    """Return the path of a program in PATH or in ``.gpupool/prometheus``; None if it is in neither."""
    return shutil.which(name) or shutil.which(name, path=str(PROMETHEUS / "usr" / "bin"))


def site_packages() -> Path:
    """Return the folder of the environment's installed packages."""
    return next((VENV / "lib").glob("python3.*")) / "site-packages"
