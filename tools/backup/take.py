"""Take a backup: the database, the secrets and settings, the logs, and the index of volumes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from tools.backup.manifest import (
    CLUSTER,
    DUMP,
    FORMAT,
    Manifest,
    backups_in,
    file_digests,
    product_version,
    read_manifest,
    write_manifest,
)
from tools.backup.source import BackupSource, client_program, libpq_environment
from tools.backup.wal import ARCHIVING_MARK, remove_segments_before
from tools.console import RunError, run_quietly
from tools.paths import PYTHON, ROOT
from tools.stores import Stores

NAME_FORMAT = "%Y%m%dT%H%M%SZ"
# Files of the state folder that an installation needs again, beside the database and the logs.
KEPT_FILES = ("secrets.json", "organisation.json", "first-work.done", "history.done")
SPARE_BYTES = 64 << 20


def take_backup(source: BackupSource) -> Path:
    """Take one backup and return its folder. Raises RunError; then no part of the backup remains."""
    source.backups.mkdir(mode=0o700, parents=True, exist_ok=True)
    with exclusive_use(source.backups):
        began = datetime.now(UTC)
        place = source.backups / began.strftime(NAME_FORMAT)
        part = place.with_suffix(".part")
        for old in source.backups.glob("*.part"):
            shutil.rmtree(old)  # a backup that was killed
        part.mkdir(mode=0o700)
        try:
            manifest = _fill(source, part, began)
            write_manifest(part, manifest)
            part.rename(place)
        except OSError as error:
            raise RunError(f"the backup failed: {error.filename or part}: {error.strerror}") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return place


@contextlib.contextmanager
def exclusive_use(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of backups. Raises RunError if another backup or verification holds it."""
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"another backup or verification in {folder} runs") from None
        yield


def _fill(source: BackupSource, part: Path, began: datetime) -> Manifest:
    facts = database_facts(source.environment)
    volumes, size = facts.pop("volumes"), int(str(facts.pop("database_bytes")))
    postgres = int(str(facts.pop("postgres")))
    _check_space(source.backups, size)
    if source.stores is not None:
        kind, first_wal = CLUSTER, _copy_cluster(source.stores, part / "database")
    else:
        kind, first_wal = DUMP, ""
        _dump(source.owner_url, part / "database.dump", postgres)
    _write_private(part / "volumes.json", json.dumps(volumes, indent=1))
    _write_private(part / "settings.json", json.dumps(dict(source.settings), indent=1))
    for name in KEPT_FILES:
        if (source.state / name).exists():
            _write_private(part / name, (source.state / name).read_text())
    _pack_logs(source.state / "logs", part / "logs.tar.gz")
    finished = datetime.now(UTC)
    return Manifest(
        format=FORMAT,
        kind=kind,
        version=product_version(),
        postgres=postgres,
        began_at=began.isoformat(),
        finished_at=finished.isoformat(),
        first_wal=first_wal,
        database_bytes=size,
        facts=facts,
        files=file_digests(part),
    )


def database_facts(environment: dict[str, str]) -> dict[str, object]:
    """Return the output of the management command `backup_facts`. Raises RunError."""
    command = [str(PYTHON), "manage.py", "backup_facts", "--skip-checks"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RunError(f"the database cannot be read:\n{done.stderr.strip()[-1000:]}")
    facts: dict[str, object] = json.loads(done.stdout)
    return facts


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_BYTES:
        raise RunError(
            f"{folder} has {free >> 20} MiB free, and the database takes {size >> 20} MiB; "
            "allowed: a disk with more space (setting GPUPOOL_BACKUPS)"
        )


def _copy_cluster(stores: Stores, to: Path) -> str:
    """Copy the embedded cluster while it runs, and return the first WAL file that its recovery needs."""
    _start_archiving(stores)
    env = {**os.environ, "PGPASSWORD": stores.passwords["postgres"]}
    command = [str(stores.postgres_bin / "pg_basebackup"), "-h", str(stores.sockets), "-U", "postgres"]
    command += ["-D", str(to), "-Ft", "-X", "stream", "-Z", "gzip:1", "--checkpoint=fast", "-w"]
    run_quietly(command, env=env)
    with tarfile.open(to / "base.tar.gz") as tar:
        label = tar.extractfile("backup_label")
        assert label is not None
        first = label.read().decode().partition("(file ")[2].partition(")")[0]
    # The last file of the copy is archived at once, so that a recovery to the end of the copy is possible.
    stores.query("SELECT pg_switch_wal()")
    return first


def is_archiving(stores: Stores | None) -> bool:
    """Return True if the embedded cluster archives its log. An external server has its own archive."""
    return stores is None or (stores.data / ARCHIVING_MARK).exists()


def _start_archiving(stores: Stores) -> None:
    archive = stores.wal_archive
    assert archive is not None
    archive.mkdir(mode=0o700, exist_ok=True)
    mark = stores.data / ARCHIVING_MARK
    if stores.launch.uid is not None:
        os.chown(archive, stores.launch.uid, stores.launch.uid)
    if not mark.exists():
        mark.touch(mode=0o644)
    if stores.query("SHOW archive_mode") != "on":
        raise RunError("PostgreSQL does not archive its log yet: restart gpupool (./run stop, then ./run up)")


def _dump(owner_url: str, to: Path, postgres: int) -> None:
    command = [client_program("pg_dump", postgres), "-Fc", "-Z1", "--no-owner", "-w", "-f", str(to)]
    run_quietly(command, env=libpq_environment(owner_url))
    to.chmod(0o600)


def _write_private(place: Path, text: str) -> None:
    place.touch(mode=0o600)
    place.write_text(text)


def _pack_logs(logs: Path, to: Path) -> None:
    """Pack the logs. Services write to them meanwhile, so each file is read once and then packed."""
    with tarfile.open(to, "w:gz", compresslevel=1) as tar:
        for path in sorted(logs.rglob("*")) if logs.is_dir() else []:
            with contextlib.suppress(FileNotFoundError):  # a log can be deleted or rotated at any time
                if not path.is_file():
                    continue
                content = path.read_bytes()
                entry = tarfile.TarInfo(str(path.relative_to(logs)))
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(path.stat().st_mtime)
                tar.addfile(entry, io.BytesIO(content))
    to.chmod(0o600)


def remove_old_backups(backups: Path, keep: int) -> list[Path]:
    """Remove all but the newest ``keep`` backups, and the WAL files that no kept backup needs."""
    found = backups_in(backups)
    old = found[:-keep]
    for folder in old:
        shutil.rmtree(folder)
    kept = [read_manifest(folder) for folder in found[-keep:]]
    firsts = [manifest.first_wal for manifest in kept if manifest.first_wal]
    if firsts:
        remove_segments_before(backups / "wal", firsts[0])
    return old
