"""Authenticate requests by API token."""

from __future__ import annotations

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from portal.models import ApiToken, User
from portal.services.people import api_tokens, sign_ins
from portal.sign_in.client import client_of
from portal.wording.pages import api_answers


class TokenAuthentication(BaseAuthentication):
    """Authenticate requests by the header ``Authorization: Bearer gpp_…``."""

    keyword = "Bearer"

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """Return the token's user and the token. Return None if the request has no bearer token.

        Raises AuthenticationFailed for an invalid token.
        """
        parts = get_authorization_header(request).split()
        if not parts or parts[0].lower() != b"bearer":
            return None
        text, now = parts[1].decode("ascii", "replace") if len(parts) == 2 else "", timezone.now()
        if not text.startswith(api_tokens.TOKEN_PREFIX):
            raise AuthenticationFailed(api_answers.TOKEN_NOT_VALID)
        token = api_tokens.token_in_force(text, now)
        if token is not None:
            sign_ins.record_token_use(token=token, client=client_of(request), now=now)
            return token.user, token
        expired = api_tokens.expired_token(text, now)
        if expired is None or expired.expires_at is None:
            raise AuthenticationFailed(api_answers.TOKEN_NOT_VALID)
        raise AuthenticationFailed(
            api_answers.TOKEN_EXPIRED.format(
                prefix=expired.prefix, expires_at=expired.expires_at.isoformat(timespec="seconds")
            )
        )

    def authenticate_header(self, request: Request) -> str:
        """Return the ``WWW-Authenticate`` header of a response with status 401."""
        return f'{self.keyword} realm="gpupool"'


class TokenAuthenticationScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describe API tokens in the OpenAPI schema."""

    target_class = "portal.api.base.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        """Return the OpenAPI definition of HTTP bearer authentication."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": api_answers.TOKEN_SCHEME,
        }
