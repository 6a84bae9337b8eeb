"""How people get an account: they are invited; nobody signs up by themselves."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone

from portal.models import User
from portal.redis_state.access_revocation import publish_session_ended
from portal.services.people import accounts

# The mail about a change: what it is called in the audit.
SECOND_FACTOR_CHANGES: dict[str, accounts.SecondFactorChange] = {
    "mfa/email/totp_activated": "turn_on_second_factor",
    "mfa/email/totp_deactivated": "turn_off_second_factor",
    "mfa/email/recovery_codes_generated": "make_recovery_codes",
}


SIGN_IN_FAILED_MESSAGE = "Nobody has this user name or e-mail address with this password."


class LocalAccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Local accounts are made by an operator; the sign-up page is closed."""

    error_messages = DefaultAccountAdapter.error_messages | {
        "username_password_mismatch": SIGN_IN_FAILED_MESSAGE,
        "email_password_mismatch": SIGN_IN_FAILED_MESSAGE,
        "too_many_login_attempts": "Too many wrong passwords. Try again in five minutes.",
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Always False: an operator makes accounts."""
        return False

    def set_password(self, user: User, password: str) -> None:
        """Changed or set anew by its owner: with a record of it."""
        accounts.set_password(user=user, password=password, now=timezone.now())

    def send_notification_mail(self, template_prefix: str, user: User, *args: Any, **kwargs: Any) -> None:
        """What touches somebody's security is told to this by name, after it was done. Second factors get their record here."""
        change = SECOND_FACTOR_CHANGES.get(template_prefix)
        if change is not None:
            accounts.record_second_factor(user=user, change=change, now=timezone.now())
        super().send_notification_mail(template_prefix, user, *args, **kwargs)

    def logout(self, request: HttpRequest) -> None:
        """Ends the portal session, and at once the notebooks and live pages that were opened from it."""
        key = request.session.session_key
        super().logout(request)
        if key:
            publish_session_ended(key)


def email_page_disabled(request: HttpRequest) -> HttpResponse:
    """In the place of the page on which people would give themselves addresses, also those of others, without a record of it."""
    raise Http404("An operator changes e-mail addresses.")
