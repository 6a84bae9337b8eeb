"""Who signs out, or loses a right, loses what was opened by it: the edge hears of it at once, and cuts workspaces and live pages.

The row of the session is the truth: where this hint is lost, the edge finds the row missing within seconds (portal/edge/workspaces/access_cache.py).
"""

from __future__ import annotations

import hashlib
import logging

import redis
from django.db import transaction

from scheduler.state import nudge

log = logging.getLogger(__name__)

ACCESS_CHANNEL = f"{nudge.SITE}:access"


def session_hash(session_key: str) -> str:
    """How workspace sessions name the portal session they came from, which nobody can sign in with."""
    return hashlib.sha256(session_key.encode()).hexdigest()


def publish_rights_changed() -> None:
    """Call in the transaction that takes somebody's right away: after its commit the edge looks at every open workspace again."""
    transaction.on_commit(lambda: _publish(""), robust=True)


def publish_session_ended(session_key: str) -> None:
    """Call after the session's row is gone."""
    _publish(session_hash(session_key))


def _publish(message: str) -> None:
    try:
        nudge.redis_connection().publish(ACCESS_CHANNEL, message)
    except redis.RedisError as error:
        log.warning("the edge was not told that somebody lost access, it will notice by itself: %s", error)
