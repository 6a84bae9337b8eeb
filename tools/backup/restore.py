"""Restore an installation from a backup into an empty folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tools.backup.manifest import CLUSTER, Manifest, check_files, check_version, read_manifest
from tools.backup.recovery import check_is_archived, recovered_cluster
from tools.backup.source import client_program, libpq_environment
from tools.backup.take import KEPT_FILES, database_facts
from tools.backup.verify import compare_facts, load_dump
from tools.backup.wal import archived_segments, missing_segments, segment_number
from tools.console import RunError, run_quietly
from tools.paths import PYTHON, ROOT
from tools.service_environment import path_with_environment
from tools.stores import embedded_stores

SPARE_BYTES = 128 << 20
OWN_APPS = ("scheduler", "telemetry", "portal")


@dataclass(frozen=True)
class RestoreRequest:
    """A backup, the empty target folder, the WAL archive, and the time to restore (None: the latest)."""

    backup: Path
    target: Path
    archive: Path | None
    until: datetime | None


@dataclass(frozen=True)
class RestoreReport:
    """The result of a restore. ``until``: the time of the last restored transaction. ``notes``: sentences."""

    until: str
    output: str
    notes: list[str]


def restore_backup(request: RestoreRequest) -> RestoreReport:
    """Restore a backup. Raises RunError; the target folder is then unchanged.

    An external database may contain the loaded dump after an error.
    """
    backup, target = request.backup, request.target
    manifest = read_manifest(backup)
    check_version(backup, manifest)
    _check_migrations(backup, manifest)
    _check_times(request, manifest)
    check_empty(target)
    _check_space(target, manifest)
    check_files(backup, manifest)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The suffix is short, because the path of the database's socket must be short.
    staging = target.parent / f"{target.name}.new"
    try:
        # Mode 711: workloads of other users can reach their homes below this folder.
        staging.mkdir(mode=0o711)
    except FileExistsError:
        raise RunError(
            f"{staging} exists: another restore runs, or one was killed; remove this folder"
        ) from None
    try:
        _copy_files(backup, staging)
        report = (_restore_cluster if manifest.kind == CLUSTER else _restore_dump)(request, manifest, staging)
        if target.exists():
            target.rmdir()
        staging.rename(target)
    except OSError as error:
        raise RunError(f"the restore failed: {error.filename or staging}: {error.strerror}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return report


def check_empty(target: Path) -> None:
    """Raise RunError if the target is neither missing nor an empty folder."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"--state {target} is not empty; allowed: an empty folder, or one that does not exist")


def _check_migrations(backup: Path, manifest: Manifest) -> None:
    """Refuse a backup whose database is newer than this checkout."""
    applied = manifest.facts["migrations"]
    assert isinstance(applied, list)
    for app in OWN_APPS:
        known = max(_number(path.name) for path in (ROOT / app / "migrations").glob("0*.py"))
        newest = max(
            (_number(name.partition(".")[2]) for name in applied if name.startswith(f"{app}.")), default=0
        )
        if newest > known:
            raise RunError(
                f"{backup}: its database has migration {newest} of {app}, and this checkout ends at {known}; "
                "allowed: restore it with the checkout that made it"
            )


def _number(name: str) -> int:
    found = re.match(r"\d+", name)
    return int(found.group()) if found else 0


def _check_times(request: RestoreRequest, manifest: Manifest) -> None:
    if request.until is None:
        return
    if manifest.kind != CLUSTER or not archived_segments(request.archive):
        raise RunError(
            "--until needs the archived log; allowed: a backup of the embedded database, and --wal DIR"
        )
    if request.until < manifest.finished:
        raise RunError(
            f"--until {request.until.isoformat()} is before the end of this backup; "
            f"allowed: {manifest.finished_at} or later, or an older backup"
        )


def _check_space(target: Path, manifest: Manifest) -> None:
    place = next(folder for folder in target.parents if folder.exists())
    free, needed = shutil.disk_usage(place).free, manifest.database_bytes + SPARE_BYTES
    if free < needed:
        raise RunError(f"{place} has {free >> 20} MiB free; allowed: at least {needed >> 20} MiB")


def _copy_files(backup: Path, staging: Path) -> None:
    for name in KEPT_FILES:
        if (backup / name).exists():
            (staging / name).touch(mode=0o600)
            (staging / name).write_bytes((backup / name).read_bytes())
    logs = staging / "logs"
    logs.mkdir(mode=0o700)
    run_quietly(["tar", "-xzf", str(backup / "logs.tar.gz"), "-C", str(logs), "--no-same-owner"])


def _restore_cluster(request: RestoreRequest, manifest: Manifest, staging: Path) -> RestoreReport:
    if os.environ.get("DATABASE_URL"):
        raise RunError("this backup has an embedded database; allowed: restore it without DATABASE_URL")
    passwords = json.loads((staging / "secrets.json").read_text())
    notes, complete = _log_state(request.archive, manifest)
    archive = request.archive if archived_segments(request.archive) else None
    arguments = ["--keep-tokens"] if complete and request.until is None else []
    if request.until is not None and complete:
        arguments = ["--access", str(_later_access(request, manifest, staging, passwords))]
    stores = embedded_stores(staging, passwords, durable=True)
    _check_postgres(stores.postgres_bin, manifest)
    try:
        with recovered_cluster(request.backup, stores, archive, request.until) as cluster:
            env = _environment(request.backup, staging, stores.url("owner"))
            compare_facts(request.backup, manifest, database_facts(env))
            output = _manage(env, "after_restore", *arguments)
        (staging / "access.json").unlink(missing_ok=True)
        if stores.launch.uid is not None:
            final = embedded_stores(request.target, passwords, durable=True)
            final.data.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.move(stores.data, final.data)
    finally:
        shutil.rmtree(stores.sockets, ignore_errors=True)
    return RestoreReport(cluster.until or manifest.finished_at, output, notes)


def _log_state(archive: Path | None, manifest: Manifest) -> tuple[list[str], bool]:
    """Return sentences about the archived log, and True if it continues the backup without a gap."""
    names = archived_segments(archive)
    if not any(segment_number(name) >= segment_number(manifest.first_wal) for name in names):
        return [
            "There is no archived log: changes since the backup are lost, and all API tokens are revoked."
        ], False
    missing = missing_segments(names, manifest.first_wal)
    if missing:
        return [
            f"The archived log lacks {len(missing)} files: changes after the first of them are lost, "
            "and all API tokens are revoked."
        ], False
    return [], True


def _later_access(
    request: RestoreRequest, manifest: Manifest, staging: Path, passwords: Mapping[str, str]
) -> Path:
    """Recover the log to its end in a temporary cluster, and write its revocations into a file.

    So tokens that were revoked after the restored time stay revoked.
    """
    folder = staging / "end"
    folder.mkdir(mode=0o700)
    stores = embedded_stores(folder, passwords)
    try:
        with recovered_cluster(request.backup, stores, request.archive) as cluster:
            check_is_archived(request.until, cluster.until)
            env = _environment(request.backup, staging, stores.url("owner"))
            access = _manage(env, "after_restore", "--print-access")
    finally:
        shutil.rmtree(stores.sockets, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    place = staging / "access.json"
    place.touch(mode=0o600)
    place.write_text(access)
    return place


def _check_postgres(programs: Path, manifest: Manifest) -> None:
    said = subprocess.run([str(programs / "postgres"), "--version"], capture_output=True, text=True).stdout
    found = re.search(r"(\d+)", said)
    if found is None or int(found.group()) != manifest.postgres:
        raise RunError(
            f"this backup is of PostgreSQL {manifest.postgres}, and this environment has {said.strip()}; "
            "allowed: the same major version"
        )


def _restore_dump(request: RestoreRequest, manifest: Manifest, staging: Path) -> RestoreReport:
    url = os.environ.get("GPUPOOL_OWNER_DATABASE_URL") or os.environ.get("DATABASE_URL")
    if not url:
        raise RunError(
            "this backup is of an external database; "
            "allowed: with DATABASE_URL of an empty database (GPUPOOL_OWNER_DATABASE_URL: of its owner)"
        )
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    command = [client_program("psql"), "-qXAtw", "-c", tables]
    done = subprocess.run(command, env=libpq_environment(url), capture_output=True, text=True)
    if done.returncode != 0:
        raise RunError(f"the database of DATABASE_URL cannot be read: {done.stderr.strip()}")
    if done.stdout.strip() != "0":
        raise RunError(
            f"the database of DATABASE_URL has {done.stdout.strip()} tables; allowed: an empty database"
        )
    load_dump(request.backup, url, manifest.postgres)
    env = _environment(request.backup, staging, url)
    compare_facts(request.backup, manifest, database_facts(env))
    run_quietly([str(PYTHON), "-m", "config.roles", os.environ["DATABASE_URL"]], cwd=ROOT, env=env)
    notes = ["The dump has no log: changes since the backup are lost, and all API tokens are revoked."]
    return RestoreReport(manifest.began_at, _manage(env, "after_restore"), notes)


def _environment(backup: Path, staging: Path, url: str) -> dict[str, str]:
    """Return the environment of management commands. They use the settings of the backup and no Valkey."""
    settings: dict[str, str] = json.loads((backup / "settings.json").read_text())
    own = {
        "DATABASE_URL": url,
        "REDIS_URL": f"unix://{staging}/no-valkey",
        "GPUPOOL_STATE": str(staging),
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PATH": path_with_environment(),
    }
    return {**os.environ, **settings, **own}


def _manage(env: Mapping[str, str], *arguments: str) -> str:
    command = [str(PYTHON), "manage.py", *arguments, "--skip-checks"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise RunError(f"{arguments[0]} failed:\n{done.stderr.strip()[-1500:]}")
    return done.stdout
