"""Topics of live page events."""

from __future__ import annotations


def user_topic(user_id: int) -> str:
    """The live topic of what is one user's own (portal/edge/page_events.py)."""
    return f"user:{user_id}"
