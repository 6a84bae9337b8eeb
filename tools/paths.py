"""Name the folders of the checkout that `./run` reads and writes."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".gpupool"
VENV = STATE / "venv"
PYTHON = VENV / "bin" / "python"
EXAMPLES_VENV = STATE / "torch"
CANAILLE_VENV = STATE / "canaille"  # the OpenID Connect server of the tests
LDAP_PACKAGES = STATE / "ldap"  # the packages of sign-in with LDAP, added to the path of the services
# Folders of Debian packages that `./run test` unpacks, because their installation would start a server.
UNPACKED_PACKAGES = ("prometheus", "nginx", "caddy", "slapd")


def find_program(name: str) -> str | None:
    """Return the path of a program in PATH or in an unpacked package; None if it is in neither."""
    folders = [STATE / package / "usr" / bin for package in UNPACKED_PACKAGES for bin in ("bin", "sbin")]
    return shutil.which(name) or shutil.which(name, path=":".join(map(str, folders)))


def site_packages() -> Path:
    """Return the folder of the environment's installed packages."""
    return next((VENV / "lib").glob("python3.*")) / "site-packages"
