"""Test that a restore refuses bad input and writes nothing, and test the archive of the log."""

from __future__ import annotations

import gzip
import json
import subprocess
import tarfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tools.backup import verbs
from tools.backup.manifest import (
    CLUSTER,
    DUMP,
    FORMAT,
    MANIFEST,
    Manifest,
    file_digests,
    product_version,
    write_manifest,
)
from tools.backup.restore import RestoreRequest, restore_backup
from tools.backup.take import exclusive_use, remove_old_backups
from tools.backup.verify import compare_facts
from tools.backup.wal import (
    ARCHIVING_MARK,
    archive_command,
    archived_segments,
    missing_segments,
    restore_command,
)
from tools.console import RunError
from tools.stores import embedded_stores

FINISHED = datetime(2026, 10, 1, 12, tzinfo=UTC)
FIRST_WAL = "0000000100000000000000FE"


def embedded_version() -> int:
    """Return the major version of the embedded PostgreSQL."""
    program = embedded_stores(Path("/nowhere"), {}).postgres_bin / "postgres"
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    return int(said.split()[-1].partition(".")[0])


def make_backup(folder: Path, **changes: Any) -> Path:
    """Write a backup whose database is not readable: every refusal must come before it is read."""
    backup = folder / "20261001T115900Z"
    (backup / "database").mkdir(parents=True)
    for name in ("database/base.tar.gz", "database/pg_wal.tar.gz", "database.dump"):
        (backup / name).write_bytes(b"not a database")
    (backup / "secrets.json").write_text(
        json.dumps(dict.fromkeys(("postgres", "owner", "app", "redis"), "x"))
    )
    (backup / "settings.json").write_text("{}")
    with tarfile.open(backup / "logs.tar.gz", "w:gz"):
        pass
    manifest = Manifest(
        format=FORMAT,
        kind=CLUSTER,
        version=product_version(),
        postgres=embedded_version(),
        began_at=(FINISHED - timedelta(minutes=1)).isoformat(),
        finished_at=FINISHED.isoformat(),
        first_wal=FIRST_WAL,
        database_bytes=1000,
        facts={"migrations": ["portal.0001_user"], "rows": {"portal.User": 2}},
        files=file_digests(backup),
    )
    write_manifest(backup, replace(manifest, **changes))
    return backup


def refusal(backup: Path, target: Path, until: datetime | None = None) -> str:
    """Return the message of the refused restore, and check that nothing was written beside the target."""
    before = sorted(target.parent.rglob("*"))
    with pytest.raises(RunError) as refused:
        restore_backup(RestoreRequest(backup, target, backup.parent / "wal", until))
    assert sorted(target.parent.rglob("*")) == before
    return str(refused.value)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "restored").mkdir()
    return tmp_path / "restored" / "site"


def test_a_folder_that_is_no_backup_is_refused(tmp_path: Path, target: Path) -> None:
    assert f"{tmp_path} is not a backup: it has no {MANIFEST}" in refusal(tmp_path, target)
    (tmp_path / MANIFEST).write_text("[]")
    assert "the format of the backup is None; allowed: 1" in refusal(tmp_path, target)
    (tmp_path / MANIFEST).write_text("{")
    assert "is not JSON" in refusal(tmp_path, target)
    (tmp_path / MANIFEST).write_text(json.dumps({"format": FORMAT}))
    assert "lacks fields" in refusal(tmp_path, target)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "9.9.9"}, "is a backup of gpupool 9.9.9"),
        ({"facts": {"migrations": ["portal.9999_future"]}}, "has migration 9999 of portal"),
        ({"database_bytes": 1 << 60}, "MiB free; allowed: at least"),
        ({"postgres": 3}, "this backup is of PostgreSQL 3"),
        ({"files": {"database.dump": "0" * 64}}, "database.dump is damaged"),
        ({"files": {"lost": "0" * 64}}, "the file lost is missing"),
        ({}, "this failed: tar"),
    ],
)
def test_a_backup_that_does_not_fit_is_refused_and_nothing_is_written(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    assert words in refusal(make_backup(tmp_path / "backups", **changes), target)


def test_a_target_with_files_is_refused_and_keeps_them(tmp_path: Path, target: Path) -> None:
    target.mkdir()
    (target / "kept").write_text("mine")
    assert "is not empty" in refusal(make_backup(tmp_path / "backups"), target)
    assert (target / "kept").read_text() == "mine"


def test_a_restore_that_was_killed_is_named(tmp_path: Path, target: Path) -> None:
    (target.parent / "site.new").mkdir()
    assert "another restore runs, or one was killed" in refusal(make_backup(tmp_path / "backups"), target)


def test_a_time_is_refused_without_a_log_and_before_the_backup(tmp_path: Path, target: Path) -> None:
    backup = make_backup(tmp_path / "backups")
    assert "--until needs the archived log" in refusal(backup, target, FINISHED)
    (backup.parent / "wal").mkdir()
    (backup.parent / "wal" / f"{FIRST_WAL}.gz").touch()
    early = FINISHED - timedelta(seconds=1)
    assert "is before the end of this backup" in refusal(backup, target, early)


@pytest.mark.parametrize("text", ["yesterday", "2026-10-01T12:00:00"])
def test_a_time_without_a_zone_is_a_wrong_argument(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        verbs.restore_verb([str(tmp_path), "--state", str(tmp_path / "x"), "--until", text])
    assert "is not a time with a time zone" in capsys.readouterr().err


def test_each_kind_of_backup_needs_its_kind_of_database(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://me@127.0.0.1:1/none")
    assert "without DATABASE_URL" in refusal(make_backup(tmp_path / "a"), target)
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.delenv("GPUPOOL_OWNER_DATABASE_URL", raising=False)
    assert "with DATABASE_URL of an empty database" in refusal(make_backup(tmp_path / "b", kind=DUMP), target)


def test_a_restored_database_with_fewer_rows_fails_the_verification(tmp_path: Path) -> None:
    manifest = Manifest(**json.loads((make_backup(tmp_path) / MANIFEST).read_text()))
    good = {"migrations": ["portal.0001_user"], "rows": {"portal.User": 2}}
    compare_facts(tmp_path, manifest, good)
    with pytest.raises(RunError, match="portal.User has 1 rows; allowed: at least 2"):
        compare_facts(tmp_path, manifest, {**good, "rows": {"portal.User": 1}})
    with pytest.raises(RunError, match="other migrations"):
        compare_facts(tmp_path, manifest, {**good, "migrations": []})


def shell(command: str, cwd: Path, path: str, name: str) -> int:
    filled = command.replace("%p", path).replace("%f", name).replace("%%", "%")
    return subprocess.run(["sh", "-c", filled], cwd=cwd, capture_output=True).returncode


def test_files_of_the_log_are_archived_once_and_never_replaced(tmp_path: Path) -> None:
    archive, data = tmp_path / "100% wal", tmp_path / "data"
    data.mkdir()
    (data / "segment").write_text("first")
    command = archive_command(archive)
    assert shell(command, data, "segment", FIRST_WAL) == 0, "without a backup, files are discarded"
    (data / ARCHIVING_MARK).touch()
    assert shell(command, data, "segment", FIRST_WAL) != 0, "the folder is missing, so PostgreSQL tries again"
    archive.mkdir()
    assert shell(command, data, "segment", FIRST_WAL) == 0
    assert shell(command, data, "segment", FIRST_WAL) == 0, "the same content is accepted again"
    (data / "segment").write_text("other")
    assert shell(command, data, "segment", FIRST_WAL) != 0
    assert gzip.decompress((archive / f"{FIRST_WAL}.gz").read_bytes()) == b"first"
    assert shell(restore_command(archive), data, "restored", FIRST_WAL) == 0
    assert (data / "restored").read_text() == "first"
    assert shell(restore_command(archive), data, "restored", "0" * 24) != 0


def test_a_gap_in_the_archived_log_is_found_across_timelines(tmp_path: Path) -> None:
    names = [FIRST_WAL, "0000000100000000000000FF", "000000020000000100000000", "000000020000000100000002"]
    for name in [*names, "00000002.history"]:
        (tmp_path / f"{name}.gz").touch()
    assert archived_segments(tmp_path) == names
    assert missing_segments(names[:3], FIRST_WAL) == []
    assert missing_segments(names, FIRST_WAL) == [257]


def test_old_backups_and_the_log_before_the_oldest_kept_one_are_removed(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    for number in (1, 2, 3):
        made = make_backup(tmp_path / "new", first_wal=f"00000001000000000000000{number * 2}")
        made.rename(tmp_path / f"2026100{number}T000000Z")
    for number in range(1, 8):
        (tmp_path / "wal" / f"00000001000000000000000{number}.gz").touch()
    assert [path.name for path in remove_old_backups(tmp_path, keep=2)] == ["20261001T000000Z"]
    assert [name[-1] for name in archived_segments(tmp_path / "wal")] == ["4", "5", "6", "7"]


def test_two_backups_into_one_folder_are_never_made_at_once(tmp_path: Path) -> None:
    refused = pytest.raises(RunError, match="another backup or verification")
    with exclusive_use(tmp_path), refused, exclusive_use(tmp_path):
        raise AssertionError("the second one got the lock")
