"""List the identity providers of the database and of the environment: OpenID Connect and LDAP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from portal.models import IdentityProvider
from portal.sign_in.ldap.settings import DirectorySettings, directory_from
from portal.sign_in.oidc.client_secrets import decrypt_secret

# The columns with the claims of the Unix identity.
UNIX_CLAIM_COLUMNS = ("uid_claim", "gid_claim", "groups_claim", "unix_name_claim", "home_claim")
ENVIRONMENT_SLUG = "environment"  # of the provider that GPUPOOL_OIDC_ISSUER sets
OIDC, LDAP = IdentityProvider.Kind.OIDC, IdentityProvider.Kind.LDAP


@dataclass(frozen=True)
class ProviderSettings:
    """The settings of one provider. The environment gives a plain secret, the database an encrypted one.

    A directory has ``directory``, and no issuer, client id and scopes.
    """

    slug: str
    name: str
    issuer: str
    client_id: str
    scopes: str = "openid profile email"
    username_claim: str = "preferred_username"
    ca_certificates: str = ""
    creates_accounts: bool = True
    active: bool = True
    encrypted_secret: str = field(default="", repr=False)
    plain_secret: str = field(default="", repr=False)
    kind: str = OIDC
    directory: DirectorySettings | None = None
    from_environment: bool = False
    uid_claim: str = ""
    gid_claim: str = ""
    groups_claim: str = ""
    unix_name_claim: str = ""
    home_claim: str = ""

    @property
    def unix_claims(self) -> dict[str, str]:
        """Return the name of the claim for each part of a Unix identity; empty: the part is not taken."""
        return {
            "uid": self.uid_claim,
            "gid": self.gid_claim,
            "groups": self.groups_claim,
            "name": self.unix_name_claim,
            "home": self.home_claim,
        }

    @property
    def secret(self) -> str:
        """Return the client secret. Raises SignInRefused if it cannot be decrypted."""
        if not self.encrypted_secret:
            return self.plain_secret
        return decrypt_secret(self.encrypted_secret, self.name)

    @property
    def address(self) -> str:
        """Return the issuer, or the URL of the directory."""
        return self.directory.url if self.directory else self.issuer


def all_providers() -> list[ProviderSettings]:
    """Return all providers, also those that are off: first those of the environment, then by name.

    A provider of the environment hides one of the database with the same slug.
    """
    of_environment = environment_providers()
    hidden = [each.slug for each in of_environment]
    rows = IdentityProvider.objects.exclude(slug__in=hidden).order_by("name", "slug")
    return [*of_environment, *map(settings_of, rows)]


def active_providers(kind: str = "") -> list[ProviderSettings]:
    """Return the providers with which people can sign in; with ``kind``, only those of one kind."""
    return [each for each in all_providers() if each.active and kind in ("", each.kind)]


def find_provider(slug: str, *, kind: str = "", also_inactive: bool = False) -> ProviderSettings | None:
    """Return the provider with this slug, or None. With ``kind``, it must be of this kind."""
    found = next((each for each in all_providers() if each.slug == slug), None)
    if found is None or kind not in ("", found.kind):
        return None
    return found if found.active or also_inactive else None


def settings_of(row: IdentityProvider) -> ProviderSettings:
    """Return the settings in a row of the database."""
    return ProviderSettings(
        slug=row.slug,
        name=row.name,
        issuer=row.issuer,
        client_id=row.client_id,
        scopes=row.scopes,
        username_claim=row.username_claim,
        ca_certificates=row.ca_certificates,
        creates_accounts=row.creates_accounts,
        active=row.active,
        encrypted_secret=row.encrypted_secret,
        **{name: getattr(row, name) for name in UNIX_CLAIM_COLUMNS},
        kind=row.kind,
        directory=directory_from(row.directory) if row.kind == LDAP else None,
    )


def environment_providers() -> list[ProviderSettings]:
    """Return the providers that environment variables, or the file that they name, set."""
    one = settings.GPUPOOL_OIDC
    given = [*([{**one, "slug": ENVIRONMENT_SLUG}] if one else []), *settings.GPUPOOL_IDENTITY_PROVIDERS]
    return [_of_environment(each) for each in given]


def _of_environment(given: Mapping[str, Any]) -> ProviderSettings:
    values = {name: value for name, value in given.items() if name not in ("secret", "directory")}
    directory = directory_from(given["directory"]) if "directory" in given else None
    defaults = {"issuer": "", "client_id": ""}
    return ProviderSettings(
        **{**defaults, **values}, plain_secret=given["secret"], directory=directory, from_environment=True
    )
