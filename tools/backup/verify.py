"""Verify a backup by restoring it into a temporary database."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tools.backup.manifest import CLUSTER, VERIFIED, Manifest, check_files, check_version, read_manifest
from tools.backup.recovery import recovered_cluster
from tools.backup.source import BackupSource, client_program, libpq_environment
from tools.backup.take import database_facts, exclusive_use
from tools.backup.wal import archived_segments
from tools.console import RunError, run_quietly
from tools.stores import embedded_stores


def verify_backup(backup: Path, source: BackupSource) -> float:
    """Restore a backup into a temporary database, compare its facts, and return the seconds that this took.

    The result is written into the folder of the backup. Raises RunError if the backup cannot be restored.
    """
    manifest, began = read_manifest(backup), time.monotonic()
    check_version(backup, manifest)
    check_files(backup, manifest)
    database = (
        _temporary_cluster(backup, source)
        if manifest.kind == CLUSTER
        else _temporary_database(backup, source)
    )
    with exclusive_use(source.backups), database as url:
        compare_facts(backup, manifest, database_facts({**source.environment, "DATABASE_URL": url}))
    seconds = time.monotonic() - began
    verified = {"at": datetime.now(UTC).isoformat(), "seconds": round(seconds, 1)}
    (backup / VERIFIED).write_text(json.dumps(verified) + "\n")
    return seconds


def compare_facts(backup: Path, manifest: Manifest, found: dict[str, object]) -> None:
    """Raise RunError if a restored database has less than its manifest promises."""
    wanted = manifest.facts
    if found["migrations"] != wanted["migrations"]:
        raise RunError(f"{backup}: the restored database has other migrations than the manifest")
    counts, restored = wanted["rows"], found["rows"]
    assert isinstance(counts, dict) and isinstance(restored, dict)
    for table, count in counts.items():
        if restored.get(table, 0) < count:
            raise RunError(
                f"{backup}: the restored table {table} has {restored.get(table, 0)} rows; "
                f"allowed: at least {count}"
            )


@contextlib.contextmanager
def _temporary_cluster(backup: Path, source: BackupSource) -> Iterator[str]:
    passwords = json.loads((backup / "secrets.json").read_text())
    folder = Path(tempfile.mkdtemp(prefix="verify-", suffix=".part", dir=source.backups))
    stores = embedded_stores(folder, passwords)
    archive = source.backups / "wal"
    try:
        with recovered_cluster(backup, stores, archive if archived_segments(archive) else None):
            yield stores.url("owner")
    finally:
        shutil.rmtree(stores.sockets, ignore_errors=True)
        shutil.rmtree(folder)


@contextlib.contextmanager
def _temporary_database(backup: Path, source: BackupSource) -> Iterator[str]:
    name = f"gpupool_verify_{os.getpid()}_{secrets.token_hex(4)}"
    url = urlunsplit(urlsplit(source.owner_url)._replace(path=f"/{name}"))
    psql = [client_program("psql"), "-qXw", "-c"]
    env = libpq_environment(source.owner_url)
    try:
        run_quietly([*psql, f"CREATE DATABASE {name}"], env=env)
    except RunError as error:
        raise RunError(
            f"{error}\nThe owner of the database needs CREATEDB: ALTER ROLE ... CREATEDB"
        ) from None
    try:
        load_dump(backup, url, read_manifest(backup).postgres)
        yield url
    finally:
        run_quietly([*psql, f"DROP DATABASE {name} WITH (FORCE)"], env=env)


def load_dump(backup: Path, url: str, postgres: int) -> None:
    """Load the dump of a backup into an empty database, in one transaction. Raises RunError."""
    command = [client_program("pg_restore", postgres), "--no-owner", "--no-privileges", "--exit-on-error"]
    command += ["--single-transaction", "-w", "-d", libpq_environment(url)["PGDATABASE"]]
    run_quietly([*command, str(backup / "database.dump")], env=libpq_environment(url))
