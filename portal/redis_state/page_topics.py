"""Define the names of topics. A live page subscribes to topics to learn of changes."""

from __future__ import annotations


def user_topic(user_id: int) -> str:
    """Return the topic of the events for one user (portal/edge/page_events.py)."""
    return f"user:{user_id}"
