"""What the edge shows to a notebook's server in ``X-Gpupool-Secret``. Derived, so that it is kept nowhere."""

from __future__ import annotations

import hashlib
import hmac
import uuid

from django.conf import settings


def workspace_secret(run: uuid.UUID) -> str:
    """The secret of one run of a notebook, from ``Run.public_id``: 64 hexadecimal digits."""
    return hmac.new(
        settings.SECRET_KEY.encode(), f"workspace of run {run}".encode(), hashlib.sha256
    ).hexdigest()
