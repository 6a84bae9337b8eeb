"""Publish that sessions have ended or that a right was removed.

The edge then ends workspaces and live pages at once. The rows of the session and of its user are
authoritative. If the message is lost, the edge finds within seconds that the session has ended
(portal/edge/workspaces/access_cache.py). A message is the hash of a session, the text of a user, or empty.
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
    """Return the hash by which workspace sessions refer to their portal session.

    Nobody can sign in with the hash.
    """
    return hashlib.sha256(session_key.encode()).hexdigest()


def publish_rights_changed() -> None:
    """Publish, after the commit, that a right was removed. The edge then checks every open workspace again.

    Call this function in the transaction that removes the right.
    """
    transaction.on_commit(lambda: _publish(""), robust=True)


def publish_session_ended(session_key: str) -> None:
    """Publish that a portal session has ended. Call this function after the row of the session is deleted."""
    _publish(session_hash(session_key))


def publish_sessions_ended(user_id: int) -> None:
    """Publish, after the commit, that all sessions of a user have ended, except the one that ended them.

    Call this function in the transaction that raises the generation of the user's sessions.
    """
    transaction.on_commit(lambda: _publish(sessions_of_user(user_id)), robust=True)


def sessions_of_user(user_id: int) -> str:
    """Return the message for all sessions of a user. No hash of a session has this form."""
    return f"user:{user_id}"


def _publish(message: str) -> None:
    try:
        nudge.redis_connection().publish(ACCESS_CHANNEL, message)
    except redis.RedisError as error:
        log.warning("cannot publish a lost access, the edge will notice it within seconds: %s", error)
