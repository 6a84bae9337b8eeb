"""Where the portal is and who speaks: kept in one file that only its owner can read.

``GPUPOOL_URL`` and ``GPUPOOL_TOKEN`` of the environment go before the file.
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
    """A portal's address without a trailing slash, and a token."""

    url: str
    token: str


def credentials_path(environment: Mapping[str, str] = os.environ) -> Path:
    """The file, whether it exists or not."""
    base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "gpupool" / "login.json"


def normalised_portal_url(text: str) -> str:
    """A portal's address as it is kept. Raises CliError."""
    try:
        parts = urlsplit(text.strip())
        fine = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.path in ("", "/")
            and parts.port != 0
        )
    except ValueError:
        fine = False
    if not fine:
        raise CliError(f"URL is {text!r}; allowed: http(s)://HOST[:PORT] without a path.", EXIT_USAGE)
    return f"{parts.scheme}://{parts.netloc}"


def save_credentials(login: Credentials, place: Path) -> None:
    """Keep it, readable by its owner only from the first byte on."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    waiting = place.with_suffix(".new")
    waiting.unlink(missing_ok=True)
    descriptor = os.open(waiting, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": login.url, "token": login.token}, file)
    waiting.replace(place)


def load_credentials(environment: Mapping[str, str] = os.environ) -> Credentials:
    """What is kept, or the environment's. Raises CliError when there is none."""
    kept: dict[str, str] = {}
    place = credentials_path(environment)
    if place.exists():
        try:
            found = json.loads(place.read_text())
            kept = {name: str(found[name]) for name in ("url", "token")}
        except (ValueError, KeyError, TypeError, OSError):
            raise CliError(
                f"{place} can't be read; sign in again: gpupool login", EXIT_NOT_SIGNED_IN
            ) from None
    url, token = (
        environment.get("GPUPOOL_URL") or kept.get("url"),
        environment.get("GPUPOOL_TOKEN") or kept.get("token"),
    )
    if not url or not token:
        raise CliError(
            "You are not signed in. Make a token in the portal under API tokens, then: gpupool login",
            EXIT_NOT_SIGNED_IN,
        )
    return Credentials(normalised_portal_url(url), token)
