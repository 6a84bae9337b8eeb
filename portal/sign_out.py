"""Signing out of the portal ends what was opened from it: the edge hears of it at once, and cuts open workspaces and live pages.

The row of the session is the truth: where this hint is lost, the edge finds the row missing within seconds (portal/edge/doors.py).
"""

from __future__ import annotations

import hashlib
import logging

import redis

from scheduler import nudge

log = logging.getLogger(__name__)

ACCESS_CHANNEL = "gpupool:access"


def session_hash(session_key: str) -> str:
    """How workspace sessions name the portal session they came from, which nobody can sign in with."""
    return hashlib.sha256(session_key.encode()).hexdigest()


def session_ended(session_key: str) -> None:
    """Call after the session's row is gone."""
    try:
        nudge.connection().publish(ACCESS_CHANNEL, session_hash(session_key))
    except redis.RedisError as error:
        log.warning("the edge was not told of a sign-out, it will notice by itself: %s", error)
