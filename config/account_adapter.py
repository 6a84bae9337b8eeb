"""Adapt django-allauth: operators create accounts, attempts are limited, and security events are recorded."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.internal.flows.login import get_authentication_records
from allauth.core import context
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from portal.models import User
from portal.redis_state.access_revocation import publish_session_ended
from portal.redis_state.sign_in_attempts import CountedAttempt, count_attempt, forget_attempt
from portal.services.people import accounts, password_links, sign_ins
from portal.services.people.account_effects import tokens_in_force
from portal.services.people.browser_sessions import list_session
from portal.services.people.identity.sign_in import local_sign_in_allowed
from portal.sign_in.attempts import account_counter, accounts_of_login, counters_of_attempt
from portal.sign_in.client import client_address, client_of
from portal.sign_in.device_cookie import remember_device
from portal.sign_in.own_session import keep_own_session
from portal.sign_in.proof import has_authenticator_app
from portal.wording.pages import identity_pages, people_pages
from portal.wording.people import account_texts

# Verb in the audit log for each change of a second factor. The key is the template of the mail about it.
SECOND_FACTOR_CHANGES: dict[str, accounts.SecondFactorChange] = {
    "mfa/email/totp_activated": "turn_on_second_factor",
    "mfa/email/totp_deactivated": "turn_off_second_factor",
    "mfa/email/recovery_codes_generated": "make_recovery_codes",
    "mfa/email/webauthn_added": "add_passkey",
    "mfa/email/webauthn_removed": "remove_passkey",
}
PASSWORD_METHOD = "password"


class LocalAccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """An adapter that closes the sign-up page, limits attempts, and records events that concern security."""

    error_messages = DefaultAccountAdapter.error_messages | {
        "username_password_mismatch": people_pages.SIGN_IN_FAILED,
        "email_password_mismatch": people_pages.SIGN_IN_FAILED,
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Return False, because only operators create accounts."""
        return False

    def get_client_ip(self, request: HttpRequest) -> str:
        """Return the address of the client, behind the trusted proxies."""
        return client_address(request)

    # -- attempts to sign in

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Count the attempt before the password is checked. Raises ValidationError if it comes too early.

        Also raises ValidationError if sign-in by password is turned off.
        """
        if not local_sign_in_allowed():
            raise ValidationError(identity_pages.LOCAL_SIGN_IN_OFF, code="local_sign_in_off")
        login = str(credentials.get("username") or credentials.get("email") or "")
        self._accounts = accounts_of_login(login)
        self._counters = counters_of_attempt(request, login, self._accounts)
        self._attempt: CountedAttempt = count_attempt(self._counters)
        if self._attempt.refused:
            sign_ins.record_early_attempt(
                accounts=self._accounts, client=client_of(request), seconds=self._attempt.seconds
            )
            seconds = self._attempt.seconds
            raise ValidationError(people_pages.too_many_passwords(seconds), code="too_many_login_attempts")

    def authenticate(self, request: HttpRequest, **credentials: Any) -> User | None:
        """Return the user with these credentials. If the account is open, forget its wrong passwords."""
        user: User | None = super().authenticate(request, **credentials)
        if user is not None and user.is_active:
            forget_attempt(self._counters)
        return user

    def authentication_failed(self, request: HttpRequest, **credentials: Any) -> None:
        """Record an attempt with a wrong password."""
        sign_ins.record_failed_sign_in(
            accounts=self._accounts,
            client=client_of(request),
            method=PASSWORD_METHOD,
            now=timezone.now(),
            delay=self._attempt.seconds,
        )

    def respond_user_inactive(self, request: HttpRequest, user: User) -> HttpResponse:
        """Record that somebody with the right password tried to sign in to a closed account."""
        sign_ins.record_failed_sign_in(
            accounts=[user], client=client_of(request), method="closed account", now=timezone.now()
        )
        response: HttpResponse = super().respond_user_inactive(request, user)
        return response

    def post_login(self, request: HttpRequest, user: User, **kwargs: Any) -> HttpResponse:
        """Record the sign-in, and remember that the person has signed in with this browser."""
        steps = get_authentication_records(request, user)
        method = ", ".join(dict.fromkeys(_step_name(step) for step in steps))
        now, client = timezone.now(), client_of(request)
        sign_ins.record_sign_in(user=user, client=client, method=method, now=now)
        list_session(request=request, user=user, client=client, method=method, now=now)
        response: HttpResponse = super().post_login(request, user, **kwargs)
        remember_device(request, response, user)
        return response

    def get_reauthentication_methods(self, user: User) -> list[dict[str, Any]]:
        """Return the pages on which the person proves the identity, the usual one first.

        With a second factor, the password alone is no proof. A person with neither, who signs in with a
        provider, is led to the second factors.
        """
        methods: list[dict[str, Any]] = super().get_reauthentication_methods(user)
        for method in methods:
            method["description"] = account_texts.PROOFS.get(method["id"], method["description"])
        strong = [each for each in methods if each["id"].startswith("mfa_reauthenticate")]
        if not has_authenticator_app(user):
            strong.reverse()  # the passkey comes before the recovery codes
        if methods or not user.is_authenticated:
            return strong or methods
        return [
            {
                "id": "second_factor",
                "description": account_texts.SET_UP_SECOND_FACTOR,
                "url": reverse("second-factor-required"),
            }
        ]

    def logout(self, request: HttpRequest) -> None:
        """End the portal session and close the notebooks and live pages that were opened from it."""
        key, user = request.session.session_key, request.user
        super().logout(request)
        if key:
            publish_session_ended(key)
        if isinstance(user, User):
            sign_ins.record_sign_out(user=user, client=client_of(request), now=timezone.now())

    # -- passwords and second factors

    def set_password(self, user: User, password: str) -> None:
        """Set the password, end the person's other sessions and record the change.

        A person who is not signed in has used a one-time link.
        """
        request = context.request
        by_link = request.user.pk != user.pk
        client = client_of(request)
        accounts.set_password(
            user=user,
            password=password,
            now=timezone.now(),
            client=client,
            by_link=by_link,
            revoke_tokens="revoke_tokens" in request.POST,
        )
        if by_link:
            forget_attempt([account_counter(user.pk, client.network)])

    def send_notification_mail(self, template_prefix: str, user: User, *args: Any, **kwargs: Any) -> None:
        """Send the mail about a security change.

        allauth calls this method after each such change. So changes of second factors take effect here.
        """
        change = SECOND_FACTOR_CHANGES.get(template_prefix)
        if change is not None:
            accounts.change_own_second_factor(user=user, change=change, now=timezone.now())
            keep_own_session(self.request, user)
        if change is not None or template_prefix == "account/email/password_changed":
            self._offer_to_revoke_tokens(self.request, user)
        super().send_notification_mail(template_prefix, user, *args, **kwargs)

    def _offer_to_revoke_tokens(self, request: HttpRequest, user: User) -> None:
        """Say on the next page how many API tokens still work after a change that ended the sessions."""
        count = len(tokens_in_force(user, timezone.now()))
        if count:
            messages.warning(request, account_texts.TOKENS_STILL_WORK.format(count=count))

    # -- mails

    def get_reset_password_from_key_url(self, key: str) -> str:
        """Return the link of the mail about a new password, which begins with the portal's own URL."""
        return password_links.link_of_key(key)

    def send_password_reset_mail(self, user: User, email: str, context: dict[str, Any]) -> None:
        """Send the mail about a new password, and record that somebody asked for it."""
        sign_ins.record_reset_request(user=user, client=client_of(self.request), now=timezone.now())
        super().send_password_reset_mail(user, email, context)

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Send a mail in which each link and the name of the site are the portal's own.

        allauth takes them from the Host header, which the client chooses.
        """
        own = {name: _on_portal(value) if name.endswith("_url") else value for name, value in context.items()}
        super().send_mail(template_prefix, email, {**own, "current_site": PortalSite()})


def _step_name(step: dict[str, Any]) -> str:
    """Return the name of one step of a sign-in: a provider, or a kind of second factor, or the method."""
    return str(step.get("provider") or step.get("type") or step["method"])


class PortalSite:
    """The name of the portal, in the form in which templates of mails expect a site."""

    def __init__(self) -> None:
        self.domain = self.name = urlsplit(settings.GPUPOOL_PORTAL_URL).netloc


def _on_portal(url: Any) -> str:
    """Return the URL with the scheme and the host name of the portal."""
    portal, parts = urlsplit(settings.GPUPOOL_PORTAL_URL), urlsplit(str(url))
    return urlunsplit((portal.scheme, portal.netloc, parts.path, parts.query, parts.fragment))


def provider_pages_disabled(request: HttpRequest, page: str = "") -> HttpResponse:
    """Answer 404 instead of allauth's pages about connected accounts, which would not record changes."""
    raise Http404("The page Ways to sign in connects identities.")


def email_page_disabled(request: HttpRequest) -> HttpResponse:
    """Answer 404 instead of allauth's e-mail page.

    That page would accept any address and would not record the change.
    """
    raise Http404("An operator changes e-mail addresses.")
