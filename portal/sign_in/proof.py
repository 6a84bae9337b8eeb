"""Find when the person of a browser session last proved their identity."""

from __future__ import annotations

from allauth.account.internal.flows.login import get_authentication_records
from allauth.core import context
from allauth.mfa.models import Authenticator
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest

from portal.models import ApiToken, User

# Recovery codes exist only beside one of these kinds.
SECOND_FACTOR_KINDS = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)
SECOND_FACTOR_METHOD = "mfa"


def has_second_factor(user: User) -> bool:
    """Return True if the person has an authenticator app or a passkey."""
    return bool(Authenticator.objects.filter(user=user, type__in=SECOND_FACTOR_KINDS).exists())


def has_authenticator_app(user: User | AnonymousUser) -> bool:
    """Return True if the person has an authenticator app."""
    return bool(Authenticator.objects.filter(user_id=user.pk, type=Authenticator.Type.TOTP).exists())


def browser_request(user: User) -> HttpRequest | None:
    """Return the request in progress if it belongs to a browser session of this person.

    Return None for a request with an API token, and outside a request.
    """
    request: HttpRequest | None = context.request
    if request is None or isinstance(getattr(request, "auth", None), ApiToken):
        return None
    return request if getattr(request, "user", None) == user else None


def last_proof(request: HttpRequest, user: User) -> float | None:
    """Return when the person last gave a proof in this session, in seconds since the epoch.

    If the person has a second factor, only that is a proof. Otherwise each way to sign in is one, because
    nothing else can be asked for. Return None if the session has no proof.
    """
    records = get_authentication_records(request, user)
    if has_second_factor(user):
        records = [each for each in records if each["method"] == SECOND_FACTOR_METHOD]
    return max((float(each["at"]) for each in records), default=None)
