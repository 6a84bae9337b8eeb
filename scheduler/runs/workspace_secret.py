"""Derive the secret that the edge sends to a notebook's server, so that it is stored nowhere.

The secret is sent in the header ``X-Gpupool-Secret``.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid

from django.conf import settings


def workspace_secret(run: uuid.UUID) -> str:
    """Return the secret of one run of a notebook, given ``Run.public_id``: 64 hexadecimal digits."""
    return hmac.new(
        settings.SECRET_KEY.encode(), f"workspace of run {run}".encode(), hashlib.sha256
    ).hexdigest()
