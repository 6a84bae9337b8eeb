"""Make the passwords and the environment variables of services and agents."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from tools.paths import VENV

AGENT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "LD_LIBRARY_PATH")
PASSWORD_BYTES = {"postgres": 24, "owner": 24, "app": 24, "redis": 24, "django": 48}


def new_passwords() -> dict[str, str]:
    """Return new random passwords of the database roles and of Valkey, and a secret key for Django."""
    return {name: secrets.token_urlsafe(size) for name, size in PASSWORD_BYTES.items()}


def kept_passwords(folder: Path) -> dict[str, str]:
    """Return the passwords of the installation in ``folder``.

    The first call makes them and stores them in a file that only its owner can read.
    """
    place = folder / "secrets.json"
    if not place.exists():
        place.touch(mode=0o600)
        place.write_text(json.dumps(new_passwords()))
    kept: dict[str, str] = json.loads(place.read_text())
    return kept


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
        "GPUPOOL_STATE": str(state),
        "GPUPOOL_PORTAL_URL": f"http://127.0.0.1:{port}",
        "GPUPOOL_EDGE_URL": f"http://127.0.0.1:{edge_port}",
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PYTHONUNBUFFERED": "1",
        "PATH": path_with_environment(),
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
