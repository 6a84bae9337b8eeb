"""Read the identity providers that a JSON file sets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from portal.sign_in.ldap.checks import LOOPBACK_NAMES, refused_settings
from portal.wording.pages.identity_pages import SETTING_INVALID

MAX_FILE_BYTES = 1024 * 1024
MAX_PROVIDERS = 50
SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
CLAIM = re.compile(r"[A-Za-z0-9_.:/-]{1,80}")
RESERVED_SLUG = "environment"


class RefusedValueError(Exception):
    """A value in the file that is refused. ``place`` names the provider and the field."""

    def __init__(self, place: str, value: Any, allowed: str) -> None:
        self.place, self.value, self.allowed = place, ascii(value)[:200], allowed
        super().__init__(SETTING_INVALID.format(field=place, given=self.value, allowed=allowed))


def _is_text(value: Any, most: int) -> bool:
    return isinstance(value, str) and 0 < len(value.strip()) <= most and value.isprintable()


def _is_issuer(value: Any) -> bool:
    if not _is_text(value, 300) or "@" in value:
        return False
    parts = urlsplit(value)
    is_local = parts.scheme == "http" and parts.hostname in LOOPBACK_NAMES
    return (
        bool(parts.hostname) and (parts.scheme == "https" or is_local) and not (parts.query or parts.fragment)
    )


Check = tuple[Callable[[Any], bool], str]
COMMON: dict[str, Check] = {
    "kind": (lambda value: value in ("oidc", "ldap"), "oidc or ldap"),
    "slug": (
        lambda value: isinstance(value, str) and SLUG.fullmatch(value) is not None and value != RESERVED_SLUG,
        f"up to 40 small letters, digits and -, but not {RESERVED_SLUG}",
    ),
    "name": (lambda value: _is_text(value, 80), "a text of up to 80 characters"),
    "secret": (lambda value: _is_text(value, 500), "a text of up to 500 characters"),
}
OPTIONAL: dict[str, Check] = {
    "ca_certificates": (
        lambda value: isinstance(value, str) and "-----BEGIN CERTIFICATE-----" in value,
        "PEM certificates",
    ),
    "creates_accounts": (lambda value: isinstance(value, bool), "true or false"),
}
OF_KIND: dict[str, dict[str, Check]] = {
    "oidc": {
        "issuer": (_is_issuer, "https://HOST[:PORT][/PATH], exactly as the provider names itself"),
        "client_id": (lambda value: _is_text(value, 200), "a text of up to 200 characters"),
    },
    "ldap": {"directory": (lambda value: isinstance(value, dict), "an object with the settings")},
}
OPTIONAL_OF_KIND: dict[str, dict[str, Check]] = {
    "oidc": {
        "scopes": (
            lambda value: _is_text(value, 200) and "openid" in value.split(),
            "words with spaces between them, one of which is openid",
        ),
        "username_claim": (
            lambda value: isinstance(value, str) and CLAIM.fullmatch(value) is not None,
            "the name of a claim",
        ),
    },
    "ldap": {},
}


def read_identity_file(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Return the providers in a file: a JSON array of objects. Raises RefusedValueError."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        found = json.loads(text) if len(text) <= MAX_FILE_BYTES else None
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not 0 < len(found) <= MAX_PROVIDERS:
        allowed = f"the path of a readable file with a JSON array of 1 to {MAX_PROVIDERS} providers"
        raise RefusedValueError("the file", str(path), allowed)
    checked = [_checked(number, each) for number, each in enumerate(found, start=1)]
    slugs = [each["slug"] for each in checked]
    for number, slug in enumerate(slugs, start=1):
        if slug in slugs[: number - 1]:
            raise RefusedValueError(f"provider {number}: slug", slug, "a slug that no other provider has")
    return tuple(checked)


def _checked(number: int, given: Any) -> dict[str, Any]:
    """Return one provider. Raises RefusedValueError for the first value that is refused."""
    if not isinstance(given, dict):
        raise RefusedValueError(f"provider {number}", given, "an object")
    _check(number, given, "kind", COMMON["kind"])
    required = COMMON | OF_KIND[given["kind"]]
    optional = OPTIONAL | OPTIONAL_OF_KIND[given["kind"]]
    for name, check in required.items():
        _check(number, given, name, check)
    for name, value in given.items():
        if name in optional:
            _check(number, given, name, optional[name])
        elif name not in required:
            allowed = f"one of the fields {', '.join([*required, *optional])}"
            raise RefusedValueError(f"provider {number}: field {ascii(name)[:60]}", value, allowed)
    for name, value, allowed in refused_settings(given.get("directory", {})) if "directory" in given else ():
        raise RefusedValueError(f"provider {number}: directory.{name}", value, allowed)
    return given


def _check(number: int, given: Mapping[str, Any], name: str, check: Check) -> None:
    is_allowed, allowed = check
    if not is_allowed(given.get(name)):
        # A value that is a secret is not shown.
        shown = "hidden" if name == "secret" and given.get(name) else given.get(name)
        raise RefusedValueError(f"provider {number}: {name}", shown, allowed)
