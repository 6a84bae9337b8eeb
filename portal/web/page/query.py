"""Parse values of the query string."""

from __future__ import annotations

import uuid


def parse_uuid(text: str) -> uuid.UUID | None:
    """Return the text as a UUID, or None if it is invalid."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
