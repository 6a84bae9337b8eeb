"""Check the settings of a directory. The service and the file of the environment use the same checks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from portal.sign_in.ldap.settings import DIRECTORY_FIELDS, GONE_RULES, GROUP_KINDS, DirectorySettings
from portal.wording.pages.identity_pages import DIRECTORY_ALLOWED

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,79}")
DN = re.compile(r"[A-Za-z0-9.-]{1,80}=[^\x00-\x1f]{1,400}")
SERVICE_ACCOUNT = re.compile(rf"{DN.pattern}|[^\s@\x00-\x1f]{{1,100}}@[A-Za-z0-9.-]{{1,200}}")
MAX_LENGTH = 500
CHOICES = {"group_kind": GROUP_KINDS, "when_gone": GONE_RULES}
OPTIONAL = ("group_base", "further_attributes")


def refused_settings(given: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield field, value and allowed values of each setting that is refused. Absent fields have defaults."""
    for name in given:
        if name not in DIRECTORY_FIELDS:
            yield name, given[name], DIRECTORY_ALLOWED["unknown"]
    whole = {name: given.get(name, getattr(DirectorySettings(), name)) for name in DIRECTORY_FIELDS}
    for name, value in whole.items():
        if not _is_allowed(name, value, whole):
            yield name, value, DIRECTORY_ALLOWED[name]


def _is_allowed(name: str, value: Any, whole: Mapping[str, Any]) -> bool:
    if name == "start_tls":
        return isinstance(value, bool)
    if name == "max_loss_percent":
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 100
    if not isinstance(value, str) or len(value) > MAX_LENGTH:
        return False
    return (name in OPTIONAL and not value) or _is_allowed_text(name, value, whole["start_tls"] is True)


def _is_allowed_text(name: str, value: str, start_tls: bool) -> bool:
    if name in CHOICES:
        return value in CHOICES[name]
    if name == "url":
        return is_safe_directory_url(value, start_tls=start_tls)
    if name == "further_attributes":
        return all(ATTRIBUTE.fullmatch(word) for word in value.split())
    if name == "user_filter":
        return is_filter(value)
    pattern = SERVICE_ACCOUNT if name == "bind_dn" else DN if name.endswith("_base") else ATTRIBUTE
    return pattern.fullmatch(value) is not None


def is_safe_directory_url(url: str, *, start_tls: bool) -> bool:
    """Return True for ldaps, for ldap with StartTLS, and for ldap of this machine.

    StartTLS on a connection that has TLS already is an error of every directory.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    is_bare = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    if not host or not is_bare or re.search(r"[\s\x00-\x1f,]", url):
        return False
    if parts.scheme == "ldaps":
        return not start_tls
    return parts.scheme == "ldap" and (start_tls or host in LOOPBACK_NAMES)


def is_filter(text: str) -> bool:
    """Return True if the text is one filter: its parentheses are balanced, and the last one closes the first.

    The directory itself refuses other mistakes in a filter.
    """
    if not text.startswith("(") or not text.endswith(")") or re.search(r"[\x00-\x1f]", text):
        return False
    depth = 0
    for place, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and place < len(text) - 1:
            return False
    return depth == 0
