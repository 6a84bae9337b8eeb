"""Define a JSON field whose values are encrypted in the database.

The keys are outside the database: the setting GPUPOOL_ENCRYPTION_KEYS. The first key encrypts, and every key
decrypts, so a key can be replaced while the program runs (`manage.py rotate_encryption`). If the setting is
empty, the key is derived from the secret key.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import lru_cache
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.db import models

MARK = "encrypted"  # the only key of a stored JSON object whose value is encrypted
DERIVATION = b"gpupool encryption key 1\n"


class DecryptionError(Exception):
    """Raised if no key of this installation decrypts a stored value."""


def _fernet_key(text: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(DERIVATION + text.encode()).digest()))


@lru_cache(maxsize=4)
def _keys(texts: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([_fernet_key(text) for text in texts])


def installed_keys() -> MultiFernet:
    """Return the keys, the newest first. The key that is derived from the secret key comes last."""
    return _keys((*settings.GPUPOOL_ENCRYPTION_KEYS, settings.SECRET_KEY))


def encrypted(value: Any) -> dict[str, str]:
    """Return the stored form of a value."""
    return {MARK: installed_keys().encrypt(json.dumps(value).encode()).decode()}


def decrypted(stored: Any) -> Any:
    """Return the value of a stored form. A value that was stored before encryption existed is returned as is.

    Raises DecryptionError if no key fits.
    """
    if not isinstance(stored, dict) or stored.keys() != {MARK}:
        return stored
    try:
        return json.loads(installed_keys().decrypt(str(stored[MARK]).encode()))
    except InvalidToken:
        raise DecryptionError(
            "a value in the database was encrypted with a key that is not in GPUPOOL_ENCRYPTION_KEYS"
        ) from None


class EncryptedJSONField(models.JSONField):
    """A JSON field whose values are encrypted unless they are empty. Queries cannot look into a value."""

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """Return the encrypted form of a value that is not empty."""
        return super().get_db_prep_value(encrypted(value) if value else value, connection, prepared)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return the decrypted value."""
        return decrypted(super().from_db_value(value, expression, connection))

    def deconstruct(self) -> Any:
        """Describe the column for migrations: a JSON column."""
        name, _, arguments, options = super().deconstruct()
        return name, "django.db.models.JSONField", arguments, options
