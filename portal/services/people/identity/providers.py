"""Create, change, remove and test identity providers, and turn sign-in by password off and on."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from allauth.socialaccount.models import SocialAccount
from django.db import IntegrityError, transaction

from portal import locks, policy
from portal.input_checks import InputChecks, unique_slug
from portal.models import ClaimGrant, ClaimRule, IdentityProvider, Organisation, User
from portal.services import audit
from portal.sign_in.ldap.checks import refused_settings
from portal.sign_in.ldap.directory import open_directory
from portal.sign_in.ldap.settings import USERNAME_CLAIM, directory_from
from portal.sign_in.oidc.client_secrets import encrypt_secret, encrypt_secret_again
from portal.sign_in.oidc.discovery import fetch_discovery, fetch_keys, is_safe_url
from portal.sign_in.oidc.providers import (
    ENVIRONMENT_SLUG,
    LDAP,
    OIDC,
    UNIX_CLAIM_COLUMNS,
    ProviderSettings,
    active_providers,
    all_providers,
    environment_providers,
    find_provider,
)
from portal.sign_in.oidc.refusals import SignInRefused
from portal.wording.pages import identity_pages
from scheduler.core.rejection import OperationRejected

AUDITED = (
    "slug",
    "kind",
    "name",
    "issuer",
    "client_id",
    "scopes",
    "username_claim",
    "active",
    "creates_accounts",
    *UNIX_CLAIM_COLUMNS,
    "directory",
)
OIDC_FIELDS = ("issuer", "client_id", "scopes", "username_claim")
DEFAULT_SCOPES = "openid profile email"
CLAIM_PATTERN = re.compile(r"[A-Za-z0-9_.:/-]{1,80}")
MAX_CERTIFICATE_LENGTH = 100_000


@dataclass(frozen=True)
class ConnectionTest:
    """The result of a test of a provider.

    ``claims`` are those of the person in a directory for whom the operator asked.
    """

    passed: bool
    text: str
    algorithms: tuple[str, ...] = ()
    claims: Mapping[str, Any] = field(default_factory=dict)


def create_provider(
    *,
    actor: User,
    name: str,
    secret: str,
    now: datetime,
    kind: str = OIDC,
    issuer: str | None = None,
    client_id: str | None = None,
    scopes: str | None = None,
    username_claim: str | None = None,
    directory: Mapping[str, Any] | None = None,
    slug: str = "",
    ca_certificates: str = "",
    active: bool = True,
    creates_accounts: bool = True,
    why: str = "",
    via: str = "web",
    **unix_claims: str,
) -> IdentityProvider:
    """Create a provider. An empty slug gets a default. ``unix_claims`` are values of UNIX_CLAIM_COLUMNS.

    A directory (``kind`` ldap) has settings in ``directory``. Another provider has issuer, client id, scopes
    and the claim with the user name. Raises Invalid, OperationRejected, NotAllowed.
    """
    policy.require(actor, "identity.change")
    checks = InputChecks()
    given = {
        "name": name,
        "secret": secret,
        "ca_certificates": ca_certificates,
        "active": active,
        "creates_accounts": creates_accounts,
        **unix_claims,
    }
    of_oidc = {
        "issuer": issuer,
        "client_id": client_id,
        "scopes": scopes,
        "username_claim": username_claim,
    }
    if kind == LDAP:
        given |= {"directory": directory or {}, **_without_none(of_oidc)}
        if not secret:
            checks.note("secret", "", identity_pages.SECRET_NEEDED)
    else:
        defaults = {"issuer": "", "client_id": "", "scopes": DEFAULT_SCOPES, "username_claim": USERNAME_CLAIM}
        given |= {**defaults, **_without_none({**of_oidc, "directory": directory})}
    if kind not in (OIDC, LDAP):
        checks.note("kind", str(kind), identity_pages.KIND_INVALID.format(given=ascii(kind)[:40]))
    values = {
        "kind": kind,
        "encrypted_secret": encrypt_secret(""),  # a client without a secret authenticates by PKCE alone
        **_checked(checks, given, kind),
    }
    why = checks.reason(why)
    of_environment = [ENVIRONMENT_SLUG, *(each.slug for each in environment_providers())]
    taken = [*of_environment, *IdentityProvider.objects.values_list("slug", flat=True)]
    if slug:
        slug = checks.pattern(
            "slug", slug, re.compile(r"[a-z0-9][a-z0-9-]{0,39}"), "up to 40 small letters, digits and -"
        )
        if slug in of_environment:
            checks.note("slug", slug, identity_pages.SLUG_RESERVED.format(given=slug))
    checks.done()
    try:
        with transaction.atomic():
            row = IdentityProvider.objects.create(
                slug=slug or unique_slug(values["name"], taken)[:40], created_at=now, **values
            )
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="create_identity_provider",
                target=row,
                after=audit.audited_fields(row, *AUDITED),
                why=why,
            )
    except IntegrityError:
        raise OperationRejected("identity_provider_exists", {"slug": slug}, field="slug") from None
    return row


def change_provider(
    *,
    actor: User,
    provider: IdentityProvider,
    now: datetime,
    why: str = "",
    via: str = "web",
    **given: Any,
) -> IdentityProvider:
    """Change the given fields of a provider. An empty secret keeps the current one.

    Raises Invalid, NotAllowed. Raises OperationRejected if nobody could sign in any more.
    """
    policy.require(actor, "identity.change")
    checks = InputChecks()
    if "directory" in given and isinstance(given["directory"], Mapping):
        given["directory"] = {**provider.directory, **given["directory"]}
    values = _checked(checks, given, provider.kind)
    why = checks.reason(why)
    checks.done()
    with transaction.atomic():
        locks.lock_organisation()
        provider.refresh_from_db()
        before = audit.audited_fields(provider, *AUDITED)
        IdentityProvider.objects.filter(pk=provider.pk).update(**values)
        provider.refresh_from_db()
        reject_if_nobody_can_sign_in(provider.name)
        after = audit.audited_fields(provider, *AUDITED)
        if "encrypted_secret" in values:
            after["secret"] = "changed"
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="change_identity_provider",
            target=provider,
            before=before,
            after=after,
            why=why,
        )
    return provider


def remove_provider(
    *, actor: User, provider: IdentityProvider, now: datetime, why: str = "", via: str = "web"
) -> None:
    """Remove a provider with its rules and the connections of people to it.

    Accounts, memberships and roles stay as they are. Raises Invalid, NotAllowed. Raises OperationRejected if
    nobody could sign in any more.
    """
    policy.require(actor, "identity.change")
    checks = InputChecks()
    why = checks.reason(why)
    checks.done()
    with transaction.atomic():
        locks.lock_organisation()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="remove_identity_provider",
            target=provider,
            before={
                **audit.audited_fields(provider, *AUDITED),
                "connections": SocialAccount.objects.filter(provider=provider.slug).count(),
            },
            why=why,
        )
        ClaimRule.objects.filter(provider=provider.slug).delete()
        ClaimGrant.objects.filter(provider=provider.slug).delete()
        SocialAccount.objects.filter(provider=provider.slug).delete()
        name = provider.name
        IdentityProvider.objects.filter(pk=provider.pk).delete()
        reject_if_nobody_can_sign_in(name)


def encrypt_client_secrets_again() -> int:
    """Encrypt the client secret of every provider with the first key. Return the number of providers.

    A secret that is changed at the same time is encrypted with the first key already. Raises DecryptionError.
    """
    count = 0
    for provider in IdentityProvider.objects.order_by("pk"):
        stored = provider.encrypted_secret
        again = encrypt_secret_again(stored, provider.name)
        unchanged = IdentityProvider.objects.filter(pk=provider.pk, encrypted_secret=stored)
        count += unchanged.update(encrypted_secret=again)
    return count


def set_local_sign_in(
    *, actor: User, allowed: bool, now: datetime, why: str = "", via: str = "web"
) -> Organisation:
    """Turn sign-in by password on or off. API tokens and running work are not affected.

    Raises Invalid, NotAllowed. Raises OperationRejected if no operator could sign in with a provider.
    """
    policy.require(actor, "identity.change")
    checks = InputChecks()
    allowed = checks.flag("allowed", allowed)
    why = checks.reason(why)
    checks.done()
    with transaction.atomic():
        organisation = locks.lock_organisation()
        if organisation is None:
            raise OperationRejected("organisation_is_missing")
        before = audit.audited_fields(organisation, "local_sign_in")
        Organisation.objects.filter(pk=organisation.pk).update(local_sign_in=allowed)
        organisation.refresh_from_db()
        reject_if_nobody_can_sign_in("")
        audit.record_change(
            target=organisation,
            before=before,
            actor=actor,
            via=via,
            now=now,
            verb="set_local_sign_in",
            why=why,
        )
    return organisation


def run_connection_test(
    *, actor: User, slug: str, now: datetime, username: str = "", via: str = "web"
) -> ConnectionTest:
    """Test whether a provider can be used, and say what is wrong.

    For OpenID Connect, fetch the discovery document and the keys. For a directory, sign the service account
    in, and read the person ``username``, if given. Raises NotAllowed, and Invalid for an unknown slug.
    """
    policy.require(actor, "identity.change")
    checks = InputChecks()
    provider = checked_provider(checks, "provider", slug)
    username = checks.text("username", username, least=0, most=150)
    checks.done()
    try:
        if provider.kind == LDAP:
            return _directory_test(provider, username, now)
        keys = fetch_keys(provider, fetch_discovery(provider))
        provider.secret  # noqa: B018 - raises if the secret cannot be decrypted
    except SignInRefused as refusal:
        return ConnectionTest(False, refusal.message)
    text = identity_pages.TEST_PASSED.format(name=provider.name, count=len(keys))
    return ConnectionTest(
        True, text, tuple(sorted({algorithm for key in keys for algorithm in key.algorithms}))
    )


def _directory_test(provider: ProviderSettings, username: str, now: datetime) -> ConnectionTest:
    with open_directory(provider) as directory:
        if not username:
            return ConnectionTest(True, identity_pages.DIRECTORY_ANSWERS.format(name=provider.name))
        found = directory.person_named(username, now)
    if found is None:
        text = identity_pages.PERSON_UNKNOWN.format(name=provider.name, given=username)
        return ConnectionTest(False, text)
    if found.disabled:
        text = identity_pages.PERSON_DISABLED.format(name=provider.name, given=username)
        return ConnectionTest(False, text, claims=found.claims)
    text = identity_pages.PERSON_FOUND.format(name=provider.name, given=username)
    return ConnectionTest(True, text, claims=found.claims)


def checked_provider(checks: InputChecks, field: str, slug: Any) -> ProviderSettings:
    """Return the provider with this slug; otherwise note the problem."""
    found = find_provider(slug, also_inactive=True) if isinstance(slug, str) else None
    if found is None:
        allowed = ", ".join(_slugs()) or "nothing, because there is no provider"
        checks.note(
            field, slug, identity_pages.PROVIDER_UNKNOWN.format(given=ascii(slug)[:60], allowed=allowed)
        )
        return ProviderSettings("", "", "", "")
    return found


def _slugs() -> list[str]:
    return sorted(each.slug for each in all_providers())


def _without_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _checked(checks: InputChecks, given: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the columns for the given fields, and note the problems."""
    values: dict[str, Any] = {}
    if kind == LDAP and (foreign := [name for name in OIDC_FIELDS if name in given]):
        checks.note(foreign[0], "", identity_pages.KIND_FIELDS)
    for name, most in (("name", 80), ("client_id", 200)):
        if name in given:
            values[name] = checks.text(name, given[name], most=most)
    for name, check in (
        ("directory", lambda: _checked_directory(checks, given["directory"], kind)),
        ("issuer", lambda: _checked_issuer(checks, given["issuer"])),
        ("scopes", lambda: _checked_scopes(checks, given["scopes"])),
        ("ca_certificates", lambda: _checked_certificates(checks, given["ca_certificates"])),
    ):
        if name in given:
            values[name] = check()
    values |= _checked_claims(checks, given)
    if given.get("secret"):
        values["encrypted_secret"] = encrypt_secret(checks.text("secret", given["secret"], most=500))
    for name in ("active", "creates_accounts"):
        if name in given:
            values[name] = checks.flag(name, given[name])
    return values


def _checked_claims(checks: InputChecks, given: dict[str, Any]) -> dict[str, str]:
    """Return the names of claims that are given, and note the problems."""
    values = {}
    if "username_claim" in given:
        values["username_claim"] = checks.pattern(
            "username_claim", given["username_claim"], CLAIM_PATTERN, "the name of a claim"
        )
    for name in UNIX_CLAIM_COLUMNS:
        if name in given:
            claim = given[name]
            values[name] = (
                checks.pattern(name, claim, CLAIM_PATTERN, "the name of a claim, or nothing") if claim else ""
            )
    return values


def _checked_directory(checks: InputChecks, given: Any, kind: str) -> dict[str, Any]:
    """Return the settings of a directory, complete with defaults, and note the problems."""
    if kind != LDAP or not isinstance(given, Mapping):
        checks.note("directory", "", identity_pages.KIND_FIELDS)
        return {}
    problems = list(refused_settings(given))
    for name, value, allowed in problems:
        shown = ascii(value)[:200]
        text = identity_pages.SETTING_INVALID.format(field=name, given=shown, allowed=allowed)
        checks.note(name, shown, text)
    return {} if problems else directory_from(given).stored()


def _checked_issuer(checks: InputChecks, issuer: Any) -> str:
    text = checks.text("issuer", issuer, most=300)
    if text and (not is_safe_url(text) or "?" in text or "#" in text or "@" in text):
        checks.note("issuer", text, identity_pages.ISSUER_INVALID.format(given=text))
    return text


def _checked_scopes(checks: InputChecks, scopes: Any) -> str:
    text = " ".join(checks.text("scopes", scopes, most=200).split())
    if "openid" not in text.split():
        checks.note("scopes", text, identity_pages.SCOPES_INVALID.format(given=text))
    return text


def _checked_certificates(checks: InputChecks, certificates: Any) -> str:
    text = checks.text("ca_certificates", certificates, least=0, most=MAX_CERTIFICATE_LENGTH, lines=True)
    if text:
        try:
            ssl.create_default_context().load_verify_locations(cadata=text)
        except (ssl.SSLError, ValueError):
            checks.note("ca_certificates", "", identity_pages.CERTIFICATES_INVALID)
    return text


def reject_if_nobody_can_sign_in(name: str) -> None:
    """Raise OperationRejected if passwords are off and no operator is connected to an active provider."""
    if Organisation.objects.filter(local_sign_in=True).exists():
        return
    slugs = [provider.slug for provider in active_providers()]
    connected = SocialAccount.objects.filter(provider__in=slugs).values("user")
    operators = User.objects.filter(pk__in=connected, operator=True, is_active=True, auditor=False)
    if not operators.exists():
        raise OperationRejected("no_operator_could_sign_in", {"name": name})
