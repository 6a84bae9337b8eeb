"""Name the folders of the checkout that `./run` reads and writes."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".gpupool"
VENV = STATE / "venv"
PYTHON = VENV / "bin" / "python"
EXAMPLES_VENV = STATE / "torch"


def site_packages() -> Path:
    """Return the folder of the environment's installed packages."""
    return next((VENV / "lib").glob("python3.*")) / "site-packages"
