"""Publish the end of sessions and rights, so that the edge ends workspaces and live pages at once.

The session's row is authoritative: without the message the edge notices the missing row within seconds
(portal/edge/workspaces/access_cache.py).
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
    """Return the hash with which workspace sessions refer to a portal session. It is no credential."""
    return hashlib.sha256(session_key.encode()).hexdigest()


def publish_rights_changed() -> None:
    """Publish after the commit that a right was removed: the edge checks every open workspace again.

    Call it in the transaction that removes the right.
    """
    transaction.on_commit(lambda: _publish(""), robust=True)


def publish_session_ended(session_key: str) -> None:
    """Publish that a portal session has ended. Call it after its row is deleted."""
    _publish(session_hash(session_key))


def _publish(message: str) -> None:
    try:
        nudge.redis_connection().publish(ACCESS_CHANNEL, message)
    except redis.RedisError as error:
        log.warning("cannot publish a lost access, the edge will notice it within seconds: %s", error)
