"""Verify ID tokens: signature, issuer, audience, times and nonce."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

import jwt

from portal.sign_in.oidc.discovery import PublicKey
from portal.sign_in.oidc.providers import ProviderSettings
from portal.sign_in.oidc.refusals import SignInRefused

CLOCK_LEEWAY_SECONDS = 60  # by how much the clocks of a provider and of the portal may differ


def verify_id_token(
    text: Any, *, provider: ProviderSettings, keys: Sequence[PublicKey], nonce: str
) -> dict[str, Any]:
    """Return the claims of an ID token. Raises SignInRefused if a check fails.

    Algorithms with a shared key and the algorithm "none" are refused.
    """
    name = provider.name
    if not isinstance(text, str):
        raise SignInRefused("token_missing", name=name)
    try:
        key = _key_of(text, provider, keys)
        claims = jwt.decode(
            text,
            key=key.key,
            algorithms=list(key.algorithms),
            issuer=provider.issuer,
            audience=provider.client_id,
            leeway=CLOCK_LEEWAY_SECONDS,
            options={"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
    except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError):
        raise SignInRefused("clocks_differ", name=name, seconds=str(CLOCK_LEEWAY_SECONDS)) from None
    except jwt.InvalidIssuerError:
        raise SignInRefused("token_of_another_issuer", name=name) from None
    except jwt.InvalidAudienceError:
        raise SignInRefused("token_for_another_client", name=name) from None
    except (jwt.PyJWTError, TypeError, ValueError):
        raise SignInRefused("token_not_valid", name=name) from None
    _check_party(claims, provider)
    given = claims.get("nonce")
    if not isinstance(given, str) or not nonce or not hmac.compare_digest(given.encode(), nonce.encode()):
        raise SignInRefused("nonce_differs", name=name)
    return claims


def _key_of(text: str, provider: ProviderSettings, keys: Sequence[PublicKey]) -> PublicKey:
    """Return the key that the header of a token names. A token without a name fits a single key only."""
    key_id = jwt.get_unverified_header(text).get("kid")
    fitting = [key for key in keys if key.key_id == key_id] if key_id is not None else list(keys)
    if len(fitting) != 1:
        raise SignInRefused("key_unknown", name=provider.name)
    return fitting[0]


def _check_party(claims: dict[str, Any], provider: ProviderSettings) -> None:
    """Refuse a token that was issued to another client, although the portal is in its audience."""
    audience = claims["aud"]
    several = isinstance(audience, list) and len(audience) > 1
    party = claims.get("azp")
    if (several and party is None) or (party is not None and party != provider.client_id):
        raise SignInRefused("token_for_another_client", name=provider.name)
    if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= 191:
        raise SignInRefused("token_not_valid", name=provider.name)
