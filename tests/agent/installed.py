"""Install the agent as on a GPU host.

The built wheel and its dependencies are installed in an environment without the server.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def source_of(folder: Path, version: str) -> Path:
    """Return a copy of the agent's sources with another version."""
    for name in ("agent", "requirements", "deploy"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "agent" / "__init__.py").write_text(f'"""Another version."""\n\nAGENT_VERSION = "{version}"\n')
    return folder


def build(out: Path, source: Path = ROOT) -> Path:
    """Run `./run build-agent` and return the path of the wheel."""
    command = [sys.executable, str(ROOT / "run"), "build-agent", "--out", str(out), "--source", str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


def locked(lock: Path) -> dict[str, str]:
    """Return the names and versions pinned by a lock file."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock.read_text(), re.M))


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel into a new environment, without network access. Return the folder of its programs.

    The wheel's dependencies are linked from the environment of the tests.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next((folder / "lib").glob("python3.*")) / "site-packages"
    for name in locked(wheel.parent / "agent.txt"):
        _link(name, packages)
    python = str(folder / "bin" / "python")
    options = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    if importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "--python", python, *options]
    else:  # the environment of the tests was created by uv
        uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
        command = [uv, "pip", options[0], "--python", python, *options[1:]]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "bin"


def _link(name: str, packages: Path) -> None:
    """Link all top-level entries of a distribution of the tests' environment into `packages`."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return  # only another Python version needs this distribution
    for top in {path.parts[0] for path in found.files or [] if path.parts[0] not in ("..", "__pycache__")}:
        (packages / top).symlink_to(Path(str(found.locate_file(top))).resolve())
