"""Derive the secret that the edge (the proxy for notebooks) sends to a notebook's server.

The secret is computed when it is needed and never stored. It is sent in the header ``X-Gpupool-Secret``.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid

from django.conf import settings


def workspace_secret(run: uuid.UUID) -> str:
    """Return the secret of one run of a notebook: 64 hexadecimal digits. ``run`` is ``Run.public_id``."""
    return hmac.new(
        settings.SECRET_KEY.encode(), f"workspace of run {run}".encode(), hashlib.sha256
    ).hexdigest()
