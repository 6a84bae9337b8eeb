"""Find or create the account of a person whom an identity provider has signed in."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount
from django.db import IntegrityError, transaction

from portal import locks, policy
from portal.input_checks import EMAIL_PATTERN, USER_NAME_PATTERN
from portal.models import Organisation, User
from portal.services import audit
from portal.services.people.identity.providers import reject_if_nobody_can_sign_in
from portal.services.people.identity.rules import apply_rules
from portal.services.people.identity.unix_identities import take_from_claims
from portal.sign_in.oidc.providers import ProviderSettings
from portal.sign_in.oidc.refusals import SignInRefused
from scheduler.core.rejection import OperationRejected

# Members of an ID token that say nothing about the person. They are not stored.
PROTOCOL_CLAIMS = ("nonce", "at_hash", "c_hash", "jti", "sid", "exp", "iat", "nbf", "auth_time", "azp", "aud")
MAX_FULL_NAME_LENGTH = 150


def local_sign_in_allowed() -> bool:
    """Return True if people can sign in with a password of this installation."""
    return not Organisation.objects.filter(local_sign_in=False).exists()


def without_protocol_claims(claims: dict[str, Any]) -> dict[str, Any]:
    """Return the claims that say something about the person."""
    return {name: value for name, value in claims.items() if name not in PROTOCOL_CLAIMS}


def account_of(*, provider: ProviderSettings, account: SocialAccount, now: datetime) -> User:
    """Return the account of a person who was signed in, with the rights that the rules grant.

    ``account`` is the connection that the provider describes; it is unsaved at the first sign-in. An existing
    account is never connected here, because its owner must do so. Raises SignInRefused.
    """
    with transaction.atomic():
        user = account.user if account.pk else _new_account(provider, account, now)
        if user.is_active:
            apply_rules(user=user, provider=provider.slug, claims=account.extra_data, now=now)
            take_from_claims(user=user, provider=provider, claims=account.extra_data, now=now)
    return user


def connect_identity(
    *, actor: User, provider: ProviderSettings, account: SocialAccount, now: datetime, via: str = "web"
) -> None:
    """Connect an identity to the account of the actor. Raises SignInRefused, NotAllowed."""
    policy.require(actor, "own.change")
    if account.pk and account.user_id != actor.pk:
        raise SignInRefused("connected_to_other", name=provider.name)
    with transaction.atomic():
        account.user = actor
        account.save()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="connect_identity",
            target=actor,
            after={"provider": provider.slug, "subject": account.uid},
        )
        apply_rules(user=actor, provider=provider.slug, claims=account.extra_data, now=now)
        take_from_claims(user=actor, provider=provider, claims=account.extra_data, now=now)


def disconnect_identity(*, actor: User, account: SocialAccount, now: datetime, via: str = "web") -> None:
    """Disconnect an identity from the account of the actor. Rights that rules gave stay.

    Raises NotAllowed. Raises OperationRejected if the person, or every operator, could not sign in any more.
    """
    policy.require(actor, "own.change")
    with transaction.atomic():
        locks.lock_organisation()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="disconnect_identity",
            target=actor,
            before={"provider": account.provider, "subject": account.uid},
        )
        SocialAccount.objects.filter(pk=account.pk, user=actor).delete()
        _reject_if_own_last(actor)
        reject_if_nobody_can_sign_in("")


def _new_account(provider: ProviderSettings, account: SocialAccount, now: datetime) -> User:
    """Create the account of a person who signs in for the first time. Raises SignInRefused."""
    if not provider.creates_accounts:
        raise SignInRefused("accounts_not_created", name=provider.name)
    claims = account.extra_data
    username = _claim(provider, claims, provider.username_claim)
    email = _claim(provider, claims, "email")
    if not USER_NAME_PATTERN.fullmatch(username):
        raise _invalid(provider, provider.username_claim, username)
    if not EMAIL_PATTERN.fullmatch(email):
        raise _invalid(provider, "email", email)
    if User.objects.filter(username__iexact=username).exists():
        raise SignInRefused("username_taken", name=provider.name, value=username)
    used = EmailAddress.objects.filter(email__iexact=email)
    if User.objects.filter(email__iexact=email).exists() or used.exists():
        raise SignInRefused("address_taken", name=provider.name, value=email)
    full_name = claims.get("name")
    user = User(
        username=username,
        email=email,
        first_name=full_name[:MAX_FULL_NAME_LENGTH] if isinstance(full_name, str) else "",
    )
    user.set_unusable_password()
    try:
        with transaction.atomic():
            user.save(force_insert=True)
            account.user = user
            account.save()
    except IntegrityError:
        raise SignInRefused("username_taken", name=provider.name, value=username) from None
    audit.record(
        actor=None,
        via="program",
        now=now,
        verb="create_user_from_claims",
        target=user,
        after={
            **audit.audited_fields(user, "username", "email"),
            "provider": provider.slug,
            "subject": account.uid,
        },
    )
    return user


def _reject_if_own_last(user: User) -> None:
    """Raise OperationRejected if a person has no connection left, and no password with which to sign in."""
    has_password = user.has_usable_password() and local_sign_in_allowed()
    if not has_password and not SocialAccount.objects.filter(user=user).exists():
        raise OperationRejected("last_identity", {"name": user.username})


def _claim(provider: ProviderSettings, claims: dict[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value.strip():
        raise SignInRefused("claim_missing", name=provider.name, claim=name)
    return value.strip()


def _invalid(provider: ProviderSettings, claim: str, value: str) -> SignInRefused:
    return SignInRefused("claim_invalid", name=provider.name, claim=claim, value=ascii(value)[:100])
