"""List the identity providers of the database and of the environment."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.conf import settings

from portal.models import IdentityProvider
from portal.sign_in.oidc.client_secrets import decrypt_secret

# The columns with the claims of the Unix identity.
UNIX_CLAIM_COLUMNS = ("uid_claim", "gid_claim", "groups_claim", "unix_name_claim", "home_claim")
ENVIRONMENT_SLUG = "environment"  # no provider of the database may have this slug


@dataclass(frozen=True)
class ProviderSettings:
    """The settings of one provider. The environment gives a plain secret, the database an encrypted one."""

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
    def from_environment(self) -> bool:
        return self.slug == ENVIRONMENT_SLUG


def all_providers() -> list[ProviderSettings]:
    """Return all providers, also those that are off: first that of the environment, then by name."""
    rows = IdentityProvider.objects.order_by("name", "slug")
    return [*_of_environment(), *map(settings_of, rows)]


def active_providers() -> list[ProviderSettings]:
    """Return the providers with which people can sign in."""
    return [each for each in all_providers() if each.active]


def find_provider(slug: str, *, also_inactive: bool = False) -> ProviderSettings | None:
    """Return the provider with this slug, or None."""
    found = next((each for each in all_providers() if each.slug == slug), None)
    return found if found is not None and (found.active or also_inactive) else None


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
    )


def _of_environment() -> list[ProviderSettings]:
    given = settings.GPUPOOL_OIDC
    if not given:
        return []
    return [
        ProviderSettings(
            slug=ENVIRONMENT_SLUG,
            name=given["name"],
            issuer=given["issuer"],
            client_id=given["client_id"],
            scopes=given["scopes"],
            plain_secret=given["secret"],
        )
    ]
