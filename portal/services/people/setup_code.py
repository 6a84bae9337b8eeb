"""Make and check the one-time code that the first run of an installation demands."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime

from django.db import transaction
from django.utils.crypto import constant_time_compare

from portal.models import SetupCode, User


def new_setup_code(now: datetime) -> str | None:
    """Return a new code for the first run, which replaces the earlier one. Return None if an account exists.

    Only the hash of the code is stored.
    """
    with transaction.atomic():
        if User.objects.exists():
            return None
        code = "-".join(secrets.token_hex(4) for _ in range(4))
        SetupCode.objects.update_or_create(pk=1, defaults={"code_hash": _hash(code), "created_at": now})
    return code


def is_setup_code(code: str) -> bool:
    """Return True if ``code`` is the current code."""
    stored = SetupCode.objects.filter(pk=1).values_list("code_hash", flat=True).first()
    return stored is not None and constant_time_compare(stored, _hash(code))


def forget_setup_code() -> None:
    """Delete the code after the first run. Call it inside the transaction of the first run."""
    SetupCode.objects.all().delete()


def _hash(code: str) -> str:
    return hashlib.sha256(code.strip().lower().encode("utf-8", "replace")).hexdigest()
