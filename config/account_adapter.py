"""Adapt django-allauth: operators create accounts, and changes of security settings are recorded."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone

from portal.models import User
from portal.redis_state.access_revocation import publish_session_ended
from portal.services.people import accounts

# Verb in the audit log for each change of a second factor. The key is the template of the mail about it.
SECOND_FACTOR_CHANGES: dict[str, accounts.SecondFactorChange] = {
    "mfa/email/totp_activated": "turn_on_second_factor",
    "mfa/email/totp_deactivated": "turn_off_second_factor",
    "mfa/email/recovery_codes_generated": "make_recovery_codes",
}


SIGN_IN_FAILED_MESSAGE = "Nobody has this user name or e-mail address with this password."


class LocalAccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """An adapter that closes the sign-up page, and records changes of passwords and second factors."""

    error_messages = DefaultAccountAdapter.error_messages | {
        "username_password_mismatch": SIGN_IN_FAILED_MESSAGE,
        "email_password_mismatch": SIGN_IN_FAILED_MESSAGE,
        "too_many_login_attempts": "Too many wrong passwords. Try again in five minutes.",
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Return False, because only operators create accounts."""
        return False

    def set_password(self, user: User, password: str) -> None:
        """Set the password and record the change."""
        accounts.set_password(user=user, password=password, now=timezone.now())

    def send_notification_mail(self, template_prefix: str, user: User, *args: Any, **kwargs: Any) -> None:
        """Send the mail about a security change.

        allauth calls this method after each such change. So changes of second factors are recorded here.
        """
        change = SECOND_FACTOR_CHANGES.get(template_prefix)
        if change is not None:
            accounts.record_second_factor(user=user, change=change, now=timezone.now())
        super().send_notification_mail(template_prefix, user, *args, **kwargs)

    def logout(self, request: HttpRequest) -> None:
        """End the portal session and close the notebooks and live pages that were opened from it."""
        key = request.session.session_key
        super().logout(request)
        if key:
            publish_session_ended(key)


def email_page_disabled(request: HttpRequest) -> HttpResponse:
    """Answer 404 instead of allauth's e-mail page.

    That page would accept any address and would not record the change.
    """
    raise Http404("An operator changes e-mail addresses.")
