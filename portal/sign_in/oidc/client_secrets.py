"""Encrypt the client secrets of identity providers with the keys of the installation."""

from __future__ import annotations

from cryptography.fernet import InvalidToken

from portal.sign_in.oidc.refusals import SignInRefused
from scheduler.models.encrypted_fields import DecryptionError, installed_keys


def encrypt_secret(secret: str) -> str:
    """Return the encrypted form of a client secret."""
    return installed_keys().encrypt(secret.encode()).decode()


def decrypt_secret(stored: str, name: str) -> str:
    """Return the client secret of the provider ``name``. Raises SignInRefused if no key fits."""
    try:
        return installed_keys().decrypt(stored.encode()).decode()
    except InvalidToken:
        raise SignInRefused("secret_unreadable", name=name) from None


def encrypt_secret_again(stored: str, name: str) -> str:
    """Return the stored form of the same secret with the first key. Raises DecryptionError if no key fits."""
    try:
        return installed_keys().rotate(stored.encode()).decode()
    except InvalidToken:
        raise DecryptionError(
            f"the client secret of {name} was encrypted with a key that is not in GPUPOOL_ENCRYPTION_KEYS"
        ) from None
