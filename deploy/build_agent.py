"""Build the files that a GPU host installs: the agent's wheel, its lock files and its systemd unit.

Usage: ``./run build-agent [--out DIR] [--source DIR]``. The program needs only Python's standard library. If
the sources are equal, the built files are equal.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import shutil
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = "gpupool_agent"
LOCKS = ("agent", "notebooks")
UNIT = "deploy/systemd/gpupool-agent.service"
LEFT_OUT = ("__pycache__", ".pyc")
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # modification time of every file; a zip archive can store no earlier time
READABLE = 0o644 << 16


def version_of(source: Path) -> str:
    """Return AGENT_VERSION of the source tree, without importing the tree."""
    for node in ast.parse((source / "agent" / "__init__.py").read_text()).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "AGENT_VERSION"
        ):
            return str(ast.literal_eval(node.value))
    raise SystemExit(f"{source / 'agent' / '__init__.py'} does not define AGENT_VERSION")


def needed(source: Path, name: str) -> list[str]:
    """Return the requirements in ``requirements/NAME.in``.

    The exact versions are not here but in the lock file.
    """
    lines = (source / "requirements" / f"{name}.in").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith(("#", "-"))]


def metadata(source: Path, version: str) -> str:
    """Return the text of the wheel's METADATA file.

    The format is core metadata 2.1 (packaging.python.org/specifications/core-metadata).
    """
    lines = [
        "Metadata-Version: 2.1",
        "Name: gpupool-agent",
        f"Version: {version}",
        "Summary: The gpupool agent for GPU hosts.",
        "Requires-Python: >=3.11",
        *(f"Requires-Dist: {each}" for each in needed(source, "agent")),
        "Provides-Extra: notebooks",
        *(f'Requires-Dist: {each} ; extra == "notebooks"' for each in needed(source, "notebooks")),
    ]
    return "\n".join(lines) + "\n"


def build(source: Path, out: Path) -> Path:
    """Write the agent's wheel, the lock files and the systemd unit into ``out``.

    They are built from the checkout ``source``. Return the path of the wheel.
    """
    version = version_of(source)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{NAME}-*.whl"):
        old.unlink()  # the documented command installs *.whl, so only one wheel may be in the folder
    wheel = out / f"{NAME}-{version}-py3-none-any.whl"
    about = f"{NAME}-{version}.dist-info"
    files = {str(path.relative_to(source)): path.read_bytes() for path in _sources(source)}
    files[f"{about}/METADATA"] = metadata(source, version).encode()
    files[f"{about}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: gpupool\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{about}/entry_points.txt"] = b"[console_scripts]\ngpupool-agent = agent.cli:main\n"
    record = f"{about}/RECORD"
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[record] = "\n".join([*rows, f"{record},,"]).encode() + b"\n"
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, ZIP_EPOCH)
            entry.external_attr = READABLE
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    part.replace(wheel)
    for lock in LOCKS:
        shutil.copyfile(source / "requirements" / f"{lock}.txt", out / f"{lock}.txt")
    shutil.copyfile(source / UNIT, out / Path(UNIT).name)
    return wheel


def _sources(source: Path) -> list[Path]:
    found = (path for path in (source / "agent").rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part.endswith(LEFT_OUT) for part in path.parts))


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main(arguments: list[str] | None = None) -> int:
    """Build the files and return the exit status."""
    parser = argparse.ArgumentParser(prog="run build-agent", allow_abbrev=False)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="folder for the built files; default: dist"
    )
    parser.add_argument(
        "--source", type=Path, default=ROOT, help="the checkout to build from; default: this one"
    )
    options = parser.parse_args(arguments)
    if not (options.source / "agent" / "__init__.py").is_file():
        parser.error(f"--source: {options.source} is not a checkout of gpupool")
    wheel = build(options.source, options.out)
    print(wheel)
    print(f"in the same folder: {', '.join(f'{lock}.txt' for lock in LOCKS)}, {Path(UNIT).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
