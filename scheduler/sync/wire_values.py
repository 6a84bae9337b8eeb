"""Values that agents send, as the rows keep them. What is none is None: a frame with an odd value is taken in all the same."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

MAX_TIMESTAMP = 253_402_300_000  # seconds since the epoch: before the year 10000, which no datetime has


def parse_timestamp(stamp: float | None) -> datetime | None:
    """An agent's time; None when it gave none or one that no calendar has."""
    if stamp is None or not 0 < stamp < MAX_TIMESTAMP:
        return None
    return datetime.fromtimestamp(stamp, UTC)


def parse_public_id(text: str) -> uuid.UUID | None:
    """The id of a run, a diagnostic or a change of geometry; None when it can be that of none."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
