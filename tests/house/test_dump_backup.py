"""Test the backup of an external database: dump, verification in a temporary database, and restore."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from django.db import connection
from django.utils import timezone

from portal.services.people import api_tokens
from tests.world import build_world
from tools.backup import verbs
from tools.backup.manifest import DUMP, VERIFIED, backups_in, read_manifest
from tools.backup.source import client_program, find_source, libpq_environment
from tools.console import RunError

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]


def url_of(name: str) -> str:
    given = connection.settings_dict
    password, host = quote(given["PASSWORD"], safe=""), quote(given["HOST"], safe="")
    return f"postgresql://{given['USER']}:{password}@{host}/{name}"


def sql(statement: str, database: str) -> str:
    command = [client_program("psql"), "-qXAtw", "-v", "ON_ERROR_STOP=1", "-c", statement]
    env = libpq_environment(url_of(database))
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_an_external_database_is_dumped_verified_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = build_world(timezone.now())
    api_tokens.create_token(actor=world.operator, name="laptop", now=world.now)
    source = str(connection.settings_dict["NAME"])
    monkeypatch.setenv("DATABASE_URL", url_of(source))
    monkeypatch.setenv("GPUPOOL_BACKUPS", str(tmp_path / "backups"))
    monkeypatch.setenv("GPUPOOL_STATE", str(tmp_path))
    (tmp_path / "logs" / "ab").mkdir(parents=True)
    (tmp_path / "logs" / "ab" / "run.log").write_text("output of a run")
    databases = sql("SELECT count(*) FROM pg_database", source)
    assert verbs.backup_verb(["--verify"]) == 0
    assert "Verified by a restore" in capsys.readouterr().out
    [backup] = backups_in(tmp_path / "backups")
    assert read_manifest(backup).kind == DUMP and (backup / VERIFIED).exists()
    assert sql("SELECT count(*) FROM pg_database", source) == databases, "the temporary database is removed"
    assert os.stat(backup).st_mode & 0o077 == 0
    target, name = tmp_path / "restored", f"{source}_restored"
    restore = [str(backup), "--state", str(target)]
    with pytest.raises(RunError, match="allowed: an empty database"):
        verbs.restore_verb(restore)
    assert not target.exists()
    sql(f'CREATE DATABASE "{name}"', source)
    try:
        monkeypatch.setenv("DATABASE_URL", url_of(name))
        assert verbs.restore_verb(restore) == 0
        output = capsys.readouterr().out
        assert f"{world.operator.username}: laptop" in output and "all API tokens are revoked" in output
        assert sql("SELECT count(*) FROM portal_apitoken WHERE revoked_at IS NULL", name) == "0"
        assert sql("SELECT count(*) FROM scheduler_host", name) == str(len(world.hosts))
        assert (target / "logs" / "ab" / "run.log").read_text() == "output of a run"
    finally:
        sql(f'DROP DATABASE "{name}" WITH (FORCE)', source)


def test_without_a_running_site_a_backup_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="gpupool does not run"):
        find_source(tmp_path)
