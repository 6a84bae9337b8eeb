"""Make the links with which people set their passwords."""

from __future__ import annotations

from allauth.account.forms import default_token_generator
from allauth.account.utils import user_pk_to_url_str
from django.conf import settings
from django.urls import reverse

from portal.models import User
from portal.services.people.identity.sign_in import local_sign_in_allowed


def password_link(user: User) -> str:
    """Return the link with which a user sets a new password. It works once and for a limited time.

    Return an empty text while passwords are turned off.

    The key in the link depends on the current password and e-mail address and on the last sign-in. So the
    link ends when one of them changes.
    """
    if not local_sign_in_allowed():
        return ""
    return link_of_key(f"{user_pk_to_url_str(user)}-{default_token_generator.make_token(user)}")


def link_of_key(key: str) -> str:
    """Return the link with this key. It begins with the portal's own URL, whatever a request says."""
    uid, _, secret = key.partition("-")
    path = reverse("account_reset_password_from_key", kwargs={"uidb36": uid, "key": secret})
    return f"{settings.GPUPOOL_PORTAL_URL}{path}"
