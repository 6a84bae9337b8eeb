"""Parse values in the reports of agents.

An invalid value becomes None, so that it does not make the whole report invalid.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

MAX_TIMESTAMP = 253_402_300_000  # seconds since the epoch; a datetime cannot be later than the year 9999


def parse_timestamp(stamp: float | None) -> datetime | None:
    """Return an agent's timestamp as a datetime, or None if it is missing or out of range."""
    if stamp is None or not 0 < stamp < MAX_TIMESTAMP:
        return None
    return datetime.fromtimestamp(stamp, UTC)


def parse_public_id(text: str) -> uuid.UUID | None:
    """Return the id of a run, a diagnostic or a geometry change, or None if ``text`` is not a UUID."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
