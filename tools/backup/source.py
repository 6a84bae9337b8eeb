"""Find the installation that a backup copies: its settings, its state folder and its database."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tools.console import RunError
from tools.service_environment import backups_folder, kept_passwords
from tools.site.state_folders import is_running, running_folder
from tools.stores import DEBIAN_POSTGRES, Stores, embedded_programs, embedded_stores

# The settings of a server without `./run up`, which systemd reads from a file.
SERVER_SETTINGS = ("DATABASE_URL", "GPUPOOL_SECRET_KEY", "GPUPOOL_STATE")


@dataclass(frozen=True)
class BackupSource:
    """The installation that a backup copies.

    ``stores`` is the embedded PostgreSQL; None if the database is on an external server.
    """

    state: Path
    settings: Mapping[str, str]
    owner_url: str
    backups: Path
    stores: Stores | None

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the management commands that read this installation."""
        return {**os.environ, **self.settings, "DATABASE_URL": self.owner_url}


def find_source(state: Path | None) -> BackupSource:
    """Return the installation in ``state``.

    Without ``state``, return the installation of the settings in the environment, or else the one that
    `./run up` or `./run demo` runs. Raises RunError if there is none.
    """
    if state is None and all(os.environ.get(name) for name in SERVER_SETTINGS):
        settings = own_settings(os.environ)
        folder = Path(settings["GPUPOOL_STATE"])
        owner = os.environ.get("GPUPOOL_OWNER_DATABASE_URL") or settings["DATABASE_URL"]
        return BackupSource(folder, settings, owner, backups_folder(folder), None)
    found = Path(os.path.abspath(state)) if state is not None else running_folder()
    if found is None or not is_running(found):
        where = f"in {found}" if found is not None else "here"
        raise RunError(
            f"gpupool does not run {where}; start it with ./run up, or name its folder: --state DIR"
        )
    settings = json.loads((found / "environment.json").read_text())
    owner = settings.pop("GPUPOOL_OWNER_DATABASE_URL")
    backups = Path(settings["GPUPOOL_BACKUPS"])
    stores = embedded_stores(found, kept_passwords(found), durable=True, wal_archive=backups / "wal")
    is_embedded = settings["DATABASE_URL"] == stores.url("app")
    return BackupSource(found, settings, owner, backups, stores if is_embedded else None)


def own_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of gpupool among the environment variables."""
    return {
        name: value
        for name, value in variables.items()
        if name.startswith("GPUPOOL_") or name in ("DATABASE_URL", "REDIS_URL")
    }


def libpq_environment(url: str, database: str | None = None) -> dict[str, str]:
    """Return the environment with which PostgreSQL's programs connect to the address ``url``.

    The password is not in their arguments, because every user of the machine can read those.
    """
    parts = urlsplit(url)
    given = {
        "PGHOST": unquote(parts.netloc.rsplit("@", 1)[-1].split(":")[0]),
        "PGPORT": str(parts.port or ""),
        "PGUSER": unquote(parts.username or ""),
        "PGPASSWORD": unquote(parts.password or ""),
        "PGDATABASE": database or unquote(parts.path.strip("/")),
    }
    return {**os.environ, **{name: value for name, value in given.items() if value}}


def client_program(name: str, major: int = 0) -> str:
    """Return the path of a client program for a PostgreSQL of the version ``major``; 0: any version.

    A program must not be older than the server. A newer `pg_dump` writes settings that an older server does
    not know, so the same version is the first choice. Raises RunError.
    """
    found = embedded_programs() | {
        int(path.parts[-3]): path.parent
        for path in DEBIAN_POSTGRES.glob(f"*/bin/{name}")
        if path.parts[-3].isdecimal()
    }
    suitable = [version for version in found if version >= major]
    if suitable:
        return str(found[major if major in found else min(suitable) if major else max(suitable)] / name)
    if in_path := shutil.which(name):
        return in_path
    raise RunError(f"{name} {major} or newer is not installed: sudo apt-get install -y postgresql-client")
