"""Find the identity of a person whose password an LDAP directory accepts."""

from __future__ import annotations

from datetime import datetime

from allauth.socialaccount.models import SocialAccount

from portal.sign_in.ldap.directory import open_directory
from portal.sign_in.ldap.entries import DirectoryPerson
from portal.sign_in.oidc.providers import ProviderSettings
from portal.sign_in.oidc.refusals import SignInRefused

PASSWORD_WRONG = "directory_password_wrong"


def identity_in_directory(
    *, provider: ProviderSettings, username: str, password: str, now: datetime
) -> SocialAccount:
    """Return the identity of a person, with present claims. It is unsaved at the first sign-in.

    Raises SignInRefused, with the code ``PASSWORD_WRONG`` if the directory does not accept the password or
    does not know the person. A disabled person with a right password gets another sentence.
    """
    with open_directory(provider) as directory:
        found = directory.sign_in(username, password, now)
    if found is None:
        raise SignInRefused(PASSWORD_WRONG, name=provider.name)
    if found.disabled:
        raise SignInRefused("entry_disabled", name=provider.name)
    if not found.subject:
        attribute = provider.directory.subject_attribute if provider.directory else ""
        raise SignInRefused("claim_missing", name=provider.name, claim=attribute)
    return identity_of(provider, found)


def identity_of(provider: ProviderSettings, person: DirectoryPerson) -> SocialAccount:
    """Return the identity of a person in a directory, with the claims of the entry."""
    account = SocialAccount.objects.filter(provider=provider.slug, uid=person.subject).first()
    if account is None:
        return SocialAccount(provider=provider.slug, uid=person.subject, extra_data=person.claims)
    account.extra_data = person.claims
    account.save(update_fields=["extra_data", "last_login"])
    return account
