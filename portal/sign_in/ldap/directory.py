"""Find people in an LDAP directory, and check their passwords.

Only this module imports ``backend``, which needs the extra ``ldap`` of the package.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from portal.sign_in.ldap.entries import DirectoryPerson, person_of, subject_filter
from portal.sign_in.ldap.settings import DirectorySettings
from portal.sign_in.oidc.providers import ProviderSettings
from portal.sign_in.oidc.refusals import SignInRefused

MAX_USERNAME_LENGTH = 150
MAX_PASSWORD_LENGTH = 1000


class Directory:
    """An open connection to a directory. Its methods raise SignInRefused if the directory does not answer."""

    def __init__(self, provider: ProviderSettings, settings: DirectorySettings, backend: Any, link: Any):
        self._provider, self._settings, self._backend, self._link = provider, settings, backend, link

    def person_named(self, username: str, now: datetime) -> DirectoryPerson | None:
        """Return the person with this user name, or None."""
        found = self._find(self._backend.by_username(username))
        return None if found is None else self._person(found, now)

    def person_with(self, subject: str, now: datetime) -> DirectoryPerson | None:
        """Return the person with this lasting id, or None."""
        found = self._find(subject_filter(self._settings.subject_attribute, subject))
        return None if found is None else self._person(found, now)

    def sign_in(self, username: str, password: str, now: datetime) -> DirectoryPerson | None:
        """Return the person with this user name if the directory accepts the password; otherwise None.

        A directory accepts a bind with an empty password without checking anything (RFC 4513, 5.1.2). So an
        empty password is wrong.
        """
        if not password or len(password) > MAX_PASSWORD_LENGTH or "\0" in password:
            return None
        if not username or len(username) > MAX_USERNAME_LENGTH:
            return None
        found = self._find(self._backend.by_username(username))
        if found is None or not found.check_password(password):
            return None
        return self._person(found, now)

    def _find(self, condition: str) -> Any:
        return self._backend.find(condition, self._link)

    def _person(self, found: Any, now: datetime) -> DirectoryPerson:
        return person_of(found.dn, found.attrs, found.group_infos, self._settings, now)


@contextlib.contextmanager
def open_directory(provider: ProviderSettings) -> Iterator[Directory]:
    """Yield a directory that is open for the service account.

    Raises SignInRefused if the extra is not installed, if the certificate is not trusted, if the service
    account is refused, or if the directory does not answer.
    """
    settings = provider.directory
    if settings is None:
        raise ValueError(f"{provider.slug} is no directory")
    if not provider.secret:
        raise SignInRefused("directory_secret_missing", name=provider.name)
    try:
        backend = importlib.import_module("portal.sign_in.ldap.backend")
    except ImportError:
        raise SignInRefused("ldap_not_installed", name=provider.name) from None
    with backend.open_backend(provider, settings) as (found, link):
        yield Directory(provider, settings, found, link)
