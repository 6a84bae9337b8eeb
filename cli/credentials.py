"""Keep the portal's address and the token in a file that only its owner can read.

``GPUPOOL_URL`` and ``GPUPOOL_TOKEN`` in the environment take precedence over the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cli.errors import EXIT_NOT_SIGNED_IN, EXIT_USAGE, CliError


@dataclass(frozen=True)
class Credentials:
    """The address of a portal, without a trailing slash, and a token."""

    url: str
    token: str


def credentials_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the credentials file. The file may not exist."""
    base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "gpupool" / "login.json"


def normalised_portal_url(text: str) -> str:
    """Return the portal's address as ``scheme://host[:port]``. A query and a fragment are dropped.

    Raises CliError if the scheme is not http or https, the host is missing, the port is invalid or 0, or
    there is a path other than ``/``.
    """
    try:
        parts = urlsplit(text.strip())
        is_valid = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.path in ("", "/")
            and parts.port != 0
        )
    except ValueError:
        is_valid = False
    if not is_valid:
        raise CliError(f"URL is {text!r}; allowed: http(s)://HOST[:PORT] without a path.", EXIT_USAGE)
    return f"{parts.scheme}://{parts.netloc}"


def save_credentials(login: Credentials, path: Path) -> None:
    """Write the credentials file. Only its owner can read it, even while it is written."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": login.url, "token": login.token}, file)
    temporary.replace(path)


def load_credentials(environment: Mapping[str, str] = os.environ) -> Credentials:
    """Return the credentials from the environment or the file. Raises CliError if there are none."""
    saved: dict[str, str] = {}
    path = credentials_path(environment)
    if path.exists():
        try:
            data = json.loads(path.read_text())
            saved = {name: str(data[name]) for name in ("url", "token")}
        except (ValueError, KeyError, TypeError, OSError):
            raise CliError(
                f"{path} can't be read; sign in again: gpupool login", EXIT_NOT_SIGNED_IN
            ) from None
    url, token = (
        environment.get("GPUPOOL_URL") or saved.get("url"),
        environment.get("GPUPOOL_TOKEN") or saved.get("token"),
    )
    if not url or not token:
        raise CliError(
            "You are not signed in. Make a token in the portal under API tokens, then: gpupool login",
            EXIT_NOT_SIGNED_IN,
        )
    return Credentials(normalised_portal_url(url), token)
