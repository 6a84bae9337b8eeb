"""Name the topics of live page events."""

from __future__ import annotations


def user_topic(user_id: int) -> str:
    """Return the topic of live events for one user (portal/edge/page_events.py)."""
    return f"user:{user_id}"
