"""Find the accounts and the counters of an attempt to sign in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount
from django.db.models import Q
from django.http import HttpRequest

from portal.models import User
from portal.redis_state.sign_in_attempts import ACCOUNT_LIMITS, ADDRESS_LIMITS, START_LIMITS, AttemptCounter
from portal.sign_in.client import client_of
from portal.sign_in.device_cookie import remembered_device

MAX_ACCOUNTS = 10  # people with the same e-mail address


def accounts_of_login(login: str) -> list[User]:
    """Return the accounts with this user name or e-mail address."""
    if "\0" in login:
        return []
    addresses = EmailAddress.objects.filter(email__iexact=login).values("user")
    of_login = Q(username__iexact=login) | Q(email__iexact=login) | Q(pk__in=addresses)
    return list(User.objects.filter(of_login).order_by("pk")[:MAX_ACCOUNTS])


def accounts_at_provider(slug: str, username: str) -> list[User]:
    """Return the accounts that are connected to the person with this user name at a provider."""
    if "\0" in username:
        return []
    connected = SocialAccount.objects.filter(provider=slug, extra_data__preferred_username__iexact=username)
    return list(User.objects.filter(pk__in=connected.values("user")).order_by("pk")[:MAX_ACCOUNTS])


def counters_of_attempt(request: HttpRequest, login: str, accounts: Sequence[User]) -> list[AttemptCounter]:
    """Return the counters of an attempt.

    An account has one counter for each address, whether its name or its e-mail address is given. A browser in
    which the person has signed in before has a counter of its own. Unknown names are counted like accounts,
    so that nobody learns from the delays which names exist.
    """
    network = client_of(request).network
    if not accounts:
        digest = hashlib.sha256(login.lower().encode("utf-8", "surrogatepass")).hexdigest()
        return [AttemptCounter(f"name:{digest}:{network}", ACCOUNT_LIMITS), address_counter(network)]
    devices = {user.pk: remembered_device(request, user.pk) for user in accounts}
    counters = [account_counter(pk, network, device) for pk, device in devices.items()]
    return counters if any(devices.values()) else [*counters, address_counter(network)]


def account_counter(user_id: int, network: str, device: str = "") -> AttemptCounter:
    """Return the counter of an account for one address, or for one remembered browser."""
    source = f"device:{device}" if device else network
    return AttemptCounter(f"account:{user_id}:{source}", ACCOUNT_LIMITS)


def second_factor_counter(user_id: int) -> AttemptCounter:
    """Return the counter of codes of second factors of one account, from all addresses.

    Only people who know the password, or have a session, can try codes. So strangers cannot lock anybody out.
    """
    return AttemptCounter(f"second-factor:{user_id}", ACCOUNT_LIMITS)


def refused_identities(network: str) -> AttemptCounter:
    """Return the counter of refused answers of identity providers that came from one address."""
    return AttemptCounter(f"identity:{network}", ADDRESS_LIMITS, cleared_on_success=False)


def started_sign_ins(network: str) -> AttemptCounter:
    """Return the counter of sign-ins with a provider that were started from one address."""
    return AttemptCounter(f"started:{network}", START_LIMITS, cleared_on_success=False)


def address_counter(network: str) -> AttemptCounter:
    """Return the counter of all attempts from one address. A right password does not clear it."""
    return AttemptCounter(f"address:{network}", ADDRESS_LIMITS, cleared_on_success=False)
