"""Fetch and check what an identity provider says about itself, and its public keys."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import jwt

from portal.sign_in.oidc.providers import ProviderSettings
from portal.sign_in.oidc.refusals import SignInRefused
from portal.sign_in.oidc.transport import request_json

DISCOVERY_PATH = "/.well-known/openid-configuration"
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
OPTIONAL_ENDPOINTS = ("userinfo_endpoint",)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def is_safe_url(url: Any) -> bool:
    """Return True for an https URL, and for an http URL of this machine, which a development server has."""
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK_NAMES))


def fetch_discovery(provider: ProviderSettings) -> dict[str, Any]:
    """Return the discovery document. Raises SignInRefused if it is invalid or names another issuer."""
    url = provider.issuer.rstrip("/") + DISCOVERY_PATH
    status, found = request_json(provider, "GET", url)
    if status != 200 or not isinstance(found, dict):
        raise SignInRefused("discovery_invalid", name=provider.name, problem=f"{url} answers {status}")
    if found.get("issuer") != provider.issuer:
        given = str(found.get("issuer"))[:200]
        raise SignInRefused("issuer_differs", name=provider.name, given=given, expected=provider.issuer)
    for name in (*ENDPOINTS, *OPTIONAL_ENDPOINTS):
        if name in OPTIONAL_ENDPOINTS and name not in found:
            continue
        if not is_safe_url(found.get(name)):
            problem = f"{name} is {str(found.get(name))[:200]}; allowed: an https URL"
            raise SignInRefused("discovery_invalid", name=provider.name, problem=problem)
    # Without this member, the specification demands that a client authenticates by HTTP Basic.
    return {"token_endpoint_auth_methods_supported": ["client_secret_basic"], **found}


def fetch_keys(provider: ProviderSettings, discovery: dict[str, Any]) -> list[jwt.PyJWK]:
    """Return the public keys of a provider. Raises SignInRefused if it has no usable key."""
    status, found = request_json(provider, "GET", discovery["jwks_uri"])
    try:
        if status != 200 or not isinstance(found, dict):
            raise jwt.PyJWKSetError("no set of keys")
        return list(jwt.PyJWKSet.from_dict(found).keys)
    except (jwt.PyJWTError, TypeError, AttributeError, ValueError):
        raise SignInRefused("keys_invalid", name=provider.name) from None
