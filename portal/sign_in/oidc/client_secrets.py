"""Encrypt the client secrets of identity providers before they are stored.

The key is derived from the secret key of the installation, which is not in the database. After a change of
the secret key, operators enter the client secrets again.
"""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings

from portal.sign_in.oidc.refusals import SignInRefused

KEY_PURPOSE = b"gpupool client secrets of identity providers 1\n"


def encrypt_secret(secret: str) -> str:
    """Return the encrypted form of a client secret."""
    return _key().encrypt(secret.encode()).decode()


def decrypt_secret(stored: str, name: str) -> str:
    """Return the client secret of the provider ``name``. Raises SignInRefused if the key has changed."""
    try:
        return _key().decrypt(stored.encode()).decode()
    except InvalidToken:
        raise SignInRefused("secret_unreadable", name=name) from None


def _key() -> Fernet:
    digest = hashlib.sha256(KEY_PURPOSE + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))
