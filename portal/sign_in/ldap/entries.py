"""Turn the entry of a person in a directory into claims, and decide whether the person may sign in."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from portal.sign_in.ldap.settings import USERNAME_CLAIM, DirectorySettings

# The bit ACCOUNTDISABLE of Active Directory's attribute userAccountControl.
ACCOUNT_DISABLED_BIT = 0x2
BINARY_SUBJECTS = ("objectguid",)  # stored as 16 bytes, the first three fields in little-endian order
ACTIVE_DIRECTORY_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)
NEVER_EXPIRES = 2**63 - 1
FIRST_DAY = date(1970, 1, 1)  # shadowExpire counts days from it
NUL = "\0"

Attributes = Mapping[str, list[Any]]


@dataclass(frozen=True)
class DirectoryPerson:
    """A person in a directory. ``disabled``: the entry says that the person may not sign in."""

    subject: str
    dn: str
    claims: dict[str, Any]
    disabled: bool


def person_of(
    dn: str,
    attributes: Attributes,
    groups: Iterable[tuple[str, str]],
    directory: DirectorySettings,
    now: datetime,
) -> DirectoryPerson:
    """Return the person of an entry. ``groups`` are pairs of DN and name. The subject may be empty."""
    found = sorted(groups)
    subject = subject_text(directory.subject_attribute, _first(attributes, directory.subject_attribute))
    claims: dict[str, Any] = {
        "sub": subject,
        "dn": dn,
        USERNAME_CLAIM: _text(_first(attributes, directory.username_attribute)),
        "email": _text(_first(attributes, directory.email_attribute)),
        "name": _text(_first(attributes, directory.name_attribute)),
        "groups": sorted({name for _, name in found if name}),
        "group_dns": [group for group, _ in found],
    }
    for name in directory.further_attributes.split():
        if name not in claims:
            claims[name] = [text for value in attributes.get(name, []) if (text := _text(value))]
    return DirectoryPerson(subject, dn, claims, is_disabled(attributes, now))


def is_disabled(attributes: Attributes, now: datetime) -> bool:
    """Return True if Active Directory has disabled the account, or if the account has expired.

    ``accountExpires`` of Active Directory counts 100 ns from 1601; 0 and the largest value mean that the
    account works for ever. ``shadowExpire`` is the first day on which the account does not work, counted from
    1970; -1: it works for ever.
    """
    control = _number(_first(attributes, "userAccountControl"))
    if control is not None and control & ACCOUNT_DISABLED_BIT:
        return True
    ends = _number(_first(attributes, "accountExpires"))
    if (
        ends
        and ends < NEVER_EXPIRES
        and ends <= (now - ACTIVE_DIRECTORY_EPOCH) // timedelta(microseconds=1) * 10
    ):
        return True
    expires = _number(_first(attributes, "shadowExpire"))
    return expires is not None and 0 <= expires <= (now.date() - FIRST_DAY).days


def subject_text(attribute: str, value: Any) -> str:
    """Return the lasting id of a person as a text; empty without a value.

    A binary id is 16 bytes. The library returns bytes that happen to be UTF-8 as a text.
    """
    if attribute.lower() in BINARY_SUBJECTS and value is not None:
        data = value.encode() if isinstance(value, str) else value
        return str(uuid.UUID(bytes_le=data)) if len(data) == 16 else ""
    return _text(value)


def subject_filter(attribute: str, subject: str) -> str:
    """Return the filter that finds a person by the lasting id."""
    if attribute.lower() in BINARY_SUBJECTS:
        try:
            data = uuid.UUID(subject).bytes_le
        except ValueError:
            data = b""
        return f"({attribute}={''.join(f'{chr(92)}{byte:02x}' for byte in data)})"
    return f"({attribute}={escaped(subject)})"


def escaped(text: str) -> str:
    """Return a text in the form in which it stands for itself in a filter (RFC 4515)."""
    return "".join(f"\\{ord(char):02x}" if char in "\\*()\0" else char for char in text)


def _first(attributes: Attributes, name: str) -> Any:
    values = attributes.get(name)
    return values[0] if values else None


def _text(value: Any) -> str:
    """Return a value as a text; empty if it is absent, binary, or has NUL, which PostgreSQL cannot store."""
    return value.strip() if isinstance(value, str) and NUL not in value else ""


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
