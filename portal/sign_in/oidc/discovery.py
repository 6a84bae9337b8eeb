"""Fetch and check the discovery document and the public keys of an identity provider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import jwt

from portal.sign_in.oidc.providers import ProviderSettings
from portal.sign_in.oidc.refusals import SignInRefused
from portal.sign_in.oidc.transport import request_json
from portal.wording.pages.identity_pages import ENDPOINT_INVALID, STATUS_UNEXPECTED

DISCOVERY_PATH = "/.well-known/openid-configuration"
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
OPTIONAL_ENDPOINTS = ("userinfo_endpoint",)
# The algorithms of signatures, by kind of key. Shared keys and the algorithm "none" are not among them.
ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
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
        raise SignInRefused(
            "discovery_invalid", name=provider.name, problem=STATUS_UNEXPECTED.format(url=url, status=status)
        )
    if found.get("issuer") != provider.issuer:
        given = str(found.get("issuer"))[:200]
        raise SignInRefused("issuer_differs", name=provider.name, given=given, expected=provider.issuer)
    for name in (*ENDPOINTS, *OPTIONAL_ENDPOINTS):
        if name in OPTIONAL_ENDPOINTS and name not in found:
            continue
        if not is_safe_url(found.get(name)):
            problem = ENDPOINT_INVALID.format(name=name, given=str(found.get(name))[:200])
            raise SignInRefused("discovery_invalid", name=provider.name, problem=problem)
    # By the specification, a provider without this member supports HTTP Basic only.
    methods = found.get("token_endpoint_auth_methods_supported")
    found["token_endpoint_auth_methods_supported"] = (
        methods if isinstance(methods, list) else ["client_secret_basic"]
    )
    return found


@dataclass(frozen=True)
class PublicKey:
    """A public key of a provider, and the algorithms for which it may be used."""

    key_id: str | None
    key: Any
    algorithms: tuple[str, ...]


def fetch_keys(provider: ProviderSettings, discovery: dict[str, Any]) -> list[PublicKey]:
    """Return the public keys of a provider for signatures. Raises SignInRefused if it has none."""
    status, found = request_json(provider, "GET", discovery["jwks_uri"])
    published = found.get("keys") if status == 200 and isinstance(found, dict) else None
    keys = [key for data in published if (key := _public_key(data))] if isinstance(published, list) else []
    if not keys:
        raise SignInRefused("keys_invalid", name=provider.name)
    return keys


def _public_key(data: Any) -> PublicKey | None:
    """Return the key in one entry of a set of keys; None if it is unusable for signatures.

    A key that names an algorithm may be used for this one only.
    """
    if not isinstance(data, dict) or data.get("use", "sig") != "sig":
        return None
    named, kind, key_id = data.get("alg"), data.get("kty"), data.get("kid")
    allowed = ALGORITHMS.get(kind, ()) if isinstance(kind, str) else ()
    algorithms = allowed if named is None else tuple(each for each in allowed if each == named)
    if not algorithms or not (key_id is None or isinstance(key_id, str)):
        return None
    try:
        key = jwt.PyJWK(data, algorithm=algorithms[0]).key
    except (jwt.PyJWTError, TypeError, ValueError, KeyError, AttributeError):
        return None
    return PublicKey(key_id, key, algorithms)
