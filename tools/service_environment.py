"""Make the passwords and the environment variables of services and agents."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from tools.console import RunError
from tools.paths import LDAP_PACKAGES, VENV

MAX_BACKUP_HOURS = 720
AGENT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "LD_LIBRARY_PATH")
PASSWORD_BYTES = {"postgres": 24, "owner": 24, "app": 24, "redis": 24, "django": 48, "encryption": 48}


def new_passwords() -> dict[str, str]:
    """Return random passwords of the database roles and of Valkey, and the keys of Django and encryption."""
    return {name: secrets.token_urlsafe(size) for name, size in PASSWORD_BYTES.items()}


def kept_passwords(folder: Path) -> dict[str, str]:
    """Return the passwords of the installation in ``folder``.

    The first call makes them and stores them in a file that only its owner can read. An installation of an
    earlier version gets the entries that it lacks.
    """
    place = folder / "secrets.json"
    kept: dict[str, str] = json.loads(place.read_text()) if place.exists() else {}
    if missing := PASSWORD_BYTES.keys() - kept.keys():
        kept |= {name: text for name, text in new_passwords().items() if name in missing}
        new = folder / "secrets.new"
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_text(json.dumps(kept))
        new.replace(place)
    return kept


def backups_folder(state: Path) -> Path:
    """Return the folder of the backups of the installation in ``state``.

    Raises RunError if the setting GPUPOOL_BACKUPS is not an absolute path.
    """
    given = os.environ.get("GPUPOOL_BACKUPS", "").strip()
    if given and not os.path.isabs(given):
        raise RunError(f"setting GPUPOOL_BACKUPS is {given!r}; allowed: the absolute path of a folder")
    return Path(given) if given else state / "backups"


def backup_hours() -> int:
    """Return the hours between two scheduled backups; 0: no backup is scheduled. Raises RunError."""
    given = os.environ.get("GPUPOOL_BACKUP_HOURS", "").strip() or "0"
    if not given.isascii() or not given.isdecimal() or int(given[:10]) > MAX_BACKUP_HOURS:
        allowed = f"a whole number from 0 to {MAX_BACKUP_HOURS}"
        raise RunError(f"setting GPUPOOL_BACKUP_HOURS is {given[:40]!r}; allowed: {allowed}")
    return int(given)


def path_with_environment(path: str | None = None) -> str:
    """Return PATH with the programs of the Python environment in front."""
    return f"{VENV / 'bin'}{os.pathsep}{path or os.environ.get('PATH', os.defpath)}"


def service_settings(
    environment: str, state: Path, passwords: Mapping[str, str], port: int, edge_port: int
) -> dict[str, str]:
    """Return the settings of every service, except for the addresses of the database and of Valkey."""
    return {
        "GPUPOOL_ENVIRONMENT": environment,
        "GPUPOOL_SECRET_KEY": passwords["django"],
        "GPUPOOL_ENCRYPTION_KEYS": os.environ.get("GPUPOOL_ENCRYPTION_KEYS") or passwords["encryption"],
        "GPUPOOL_STATE": str(state),
        "GPUPOOL_PORTAL_URL": f"http://127.0.0.1:{port}",
        "GPUPOOL_EDGE_URL": f"http://127.0.0.1:{edge_port}",
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PYTHONUNBUFFERED": "1",
        "PATH": path_with_environment(),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(LDAP_PACKAGES), os.environ.get("PYTHONPATH")])),
    }


def agent_environment() -> dict[str, str]:
    """Return an agent's environment variables, without the secrets of the server.

    The workloads of the agent could otherwise read these secrets.
    """
    env = {name: os.environ[name] for name in AGENT_VARIABLES if name in os.environ}
    return {**env, "PATH": path_with_environment(env.get("PATH")), "PYTHONUNBUFFERED": "1"}


def environment_of_site(folder: Path) -> dict[str, str]:
    """Return the environment for a program that uses the running site of a state folder."""
    settings: dict[str, str] = json.loads((folder / "environment.json").read_text())
    return {**os.environ, **settings}
