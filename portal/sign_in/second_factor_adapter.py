"""Adapt the second factors of django-allauth: names and domains come from the portal's own URL."""

from __future__ import annotations

from urllib.parse import urlsplit

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from django.conf import settings

from portal.models import User
from portal.wording.pages import people_pages


class SecondFactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """An adapter that uses the host name of the portal's URL, and not the Host header of the client."""

    error_messages = DefaultMFAAdapter.error_messages | {"incorrect_code": people_pages.CODE_WRONG}

    def get_public_key_credential_rp_entity(self) -> dict[str, str]:
        """Return the domain to which passkeys are bound."""
        return {"id": _portal_host(), "name": f"gpupool {_portal_host()}"}

    def get_totp_issuer(self) -> str:
        """Return the name that authenticator apps show beside the code."""
        return f"gpupool {_portal_host()}"

    def generate_authenticator_name(self, user: User, type: Authenticator.Type) -> str:
        """Return the name that the form for a new passkey proposes."""
        number = Authenticator.objects.filter(user=user, type=type).count() + 1
        return people_pages.PASSKEY_NAME.format(number=number)


def _portal_host() -> str:
    return urlsplit(settings.GPUPOOL_PORTAL_URL).hostname or ""
