"""Describe a backup: the file manifest.json in its folder, with the checksum of each other file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from tools.console import RunError
from tools.paths import ROOT

FORMAT = 1
MANIFEST = "manifest.json"
VERIFIED = "verified.json"  # written by the verification, so it is not in the manifest
CLUSTER, DUMP = "cluster", "dump"
HASH_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """The description of one backup.

    ``kind``: "cluster" for a copy of the embedded cluster, "dump" for a dump of an external database.
    ``first_wal``: the first WAL file that the recovery of a cluster needs. ``database_bytes``: the size of
    the database on the disk. ``facts``: what the database had at least when the backup began (see the command
    `backup_facts`). ``files``: the SHA-256 of each file.
    """

    format: int
    kind: str
    version: str
    postgres: int
    began_at: str
    finished_at: str
    first_wal: str
    database_bytes: int
    facts: dict[str, object]
    files: dict[str, str]

    @property
    def finished(self) -> datetime:
        return datetime.fromisoformat(self.finished_at)


def product_version() -> str:
    """Return the version of this checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a backup except its manifest and the mark of its verification."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {str(path.relative_to(folder)): path for path in paths}
    return {name: file_digest(path) for name, path in names.items() if name not in (MANIFEST, VERIFIED)}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a backup."""
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a backup. Raises RunError if this version cannot read it."""
    place = folder / MANIFEST
    if not place.is_file():
        raise RunError(f"{folder} is not a backup: it has no {MANIFEST}; allowed: a folder of `./run backup`")
    try:
        given = json.loads(place.read_text())
    except ValueError:
        raise RunError(f"{folder} is not a backup: its {MANIFEST} is not JSON") from None
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        found = given.get("format") if isinstance(given, dict) else None
        raise RunError(f"{folder}: the format of the backup is {found!r}; allowed: {FORMAT}")
    with contextlib.suppress(TypeError):
        return Manifest(**given)
    raise RunError(f"{folder} is not a backup: its {MANIFEST} lacks fields or has unknown fields")


def check_version(folder: Path, manifest: Manifest) -> None:
    """Raise RunError if another version of gpupool made the backup."""
    if manifest.version != product_version():
        raise RunError(
            f"{folder} is a backup of gpupool {manifest.version}, and this is {product_version()}; "
            f"allowed: restore it with {manifest.version}, then upgrade"
        )


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise RunError if a file of the backup is missing or has another content."""
    found = file_digests(folder)
    for name, digest in manifest.files.items():
        if name not in found:
            raise RunError(f"{folder}: the file {name} is missing; nothing was restored")
        if found[name] != digest:
            raise RunError(
                f"{folder}: the file {name} is damaged (its SHA-256 differs); nothing was restored"
            )


def backups_in(folder: Path) -> list[Path]:
    """Return the complete backups in a folder of backups, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if (path / MANIFEST).is_file())
